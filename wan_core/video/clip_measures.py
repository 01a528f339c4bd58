"""Measures of clips (empty frames, flicker, grid artefacts, similarity), and a perceptual hash of pictures."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Frames = NDArray[np.uint8]
_LUMA = np.array([0.299, 0.587, 0.114], dtype=np.float32)
"""ITU-R BT.601"""
_FEW = 5
_BLOCK = 8
"""side in pixels of the square that a latent value covers, and of an SSIM window"""
_FLAT = 2.0
"""a frame with a smaller standard deviation of brightness (of 255) is empty"""
_BLACK, _LIT = 4.0, 40.0
"""brightness (of 255) below which a block is black, and above which the median pixel of a frame is not"""


def measure_clip(frames: Frames, base: Frames | None = None, last: Frames | None = None) -> dict[str, float]:
    """Returns the measures of a clip (F, H, W, 3) in [0, 255]; `ssim` only with a `base` of equal shape.

    `last`: the clip of the preview before, for `ssim_last`.

    - `empty`: share of frames of one colour, 0 to 1;
    - `flicker`: mean change of brightness between frames, 0 to 1;
    - `grid`: excess of edges at multiples of 8 pixels over other edges, as a share;
    - `spots`: share of 8-pixel blocks that are black where the frame is not, 0 to 1;
    - `ssim`: structural similarity to the base (Wang et al. 2004, windows of 8 pixels), 1 for equal clips.
    """
    small = np.ascontiguousarray(frames[:, ::2, ::2]).astype(np.float32) @ _LUMA
    brightness = small.mean(axis=(1, 2))
    found = {
        "empty": float((small.std(axis=(1, 2)) < _FLAT).mean()),
        "flicker": float(np.abs(np.diff(brightness)).mean() / 255) if len(frames) > 1 else 0.0,
        "grid": _grid(_few(frames)),
        "spots": _spots(_few(frames)),
    }
    for name, other in (("ssim", base), ("ssim_last", last)):
        if other is not None and other.shape == frames.shape:
            found[name] = _ssim(_few(frames), _few(other))
    return {name: round(value, 4) for name, value in found.items()}


def _few(frames: Frames) -> NDArray[np.float32]:
    """Returns the brightness (f, H, W) of a few evenly spaced frames."""
    chosen = np.linspace(0, len(frames) - 1, min(_FEW, len(frames))).round().astype(int)
    return frames[chosen].astype(np.float32) @ _LUMA


def _grid(luma: NDArray[np.float32]) -> float:
    """Returns the grid measure. Medians distinguish a grid, which is at all multiples of 8, from a real edge at one of
    them."""
    ratios = []
    for axis in (1, 2):
        edges = np.abs(np.diff(luma, axis=axis)).mean(axis=tuple(i for i in (0, 1, 2) if i != axis))
        at_border = np.arange(1, len(edges) + 1) % _BLOCK == 0
        if at_border.any() and (elsewhere := float(np.median(edges[~at_border]))) > 0:
            ratios.append(float(np.median(edges[at_border])) / elsewhere - 1)
    return max(0.0, float(np.mean(ratios))) if ratios else 0.0


def _spots(luma: NDArray[np.float32]) -> float:
    """Returns the share of black blocks, without frames whose median is dark too: a fade or a night scene."""
    blocks = _windows(luma).mean(-1).reshape(len(luma), -1)
    lit = np.median(luma, axis=(1, 2)) > _LIT
    return float(((blocks < _BLACK) & lit[:, None]).mean()) if blocks.size else 0.0


def _ssim(one: NDArray[np.float32], other: NDArray[np.float32]) -> float:
    a, b = _windows(one), _windows(other)
    mean_a, mean_b = a.mean(-1), b.mean(-1)
    both = ((a - mean_a[..., None]) * (b - mean_b[..., None])).mean(-1)
    c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    likeness = (2 * mean_a * mean_b + c1) * (2 * both + c2)
    return float((likeness / ((mean_a**2 + mean_b**2 + c1) * (a.var(-1) + b.var(-1) + c2))).mean())


def _windows(luma: NDArray[np.float32]) -> NDArray[np.float32]:
    """Returns the complete windows of 8 x 8 pixels, (windows, 64)."""
    count, height, width = (*luma.shape[:1], luma.shape[1] // _BLOCK, luma.shape[2] // _BLOCK)
    cut = luma[:, : height * _BLOCK, : width * _BLOCK].reshape(count, height, _BLOCK, width, _BLOCK)
    return cut.transpose(0, 1, 3, 2, 4).reshape(-1, _BLOCK * _BLOCK)


LOOK_SIZE = 32
"""side of the hashed picture"""
_FLAT_PICTURE = 2.0
"""a picture with a smaller standard deviation (in grey levels) gets no hash, because the hash would reflect compression
noise"""

_STANDS_OUT = 0.1
"""threshold of a bit, as a multiple of the root mean square of the 64 frequencies. On 200 clips cropped by 3 %: at 0, 4
% of copies differ in more than 16 bits; at 0.1, none in more than 12"""


_PLACES = np.arange(LOOK_SIZE)
_COSINES = np.cos(np.pi * (2 * _PLACES[None] + 1) * _PLACES[:, None] / (2 * LOOK_SIZE))
"""the unscaled DCT-II matrix"""
_LOWEST = sorted(((row, column) for row in range(12) for column in range(12)), key=lambda at: (sum(at), at[0]))[1:65]
"""(row, column) of the 64 lowest frequencies, without the mean"""


def look_of(grey: NDArray[Any]) -> str:
    """Returns the perceptual hash, 16 hex digits, of a picture (32, 32) of grey levels; "" for one colour."""
    levels = np.asarray(grey, np.float64)
    if levels.std() < _FLAT_PICTURE:
        return ""
    frequencies: NDArray[np.float64] = _COSINES @ levels @ _COSINES.T
    lowest = np.array([frequencies[row, column] for row, column in _LOWEST])
    # The threshold is above 0, because compression can change the sign of a small frequency.
    bits = (lowest > _STANDS_OUT * np.sqrt((lowest**2).mean())).astype(int).tolist()
    return f"{int(''.join(map(str, bits)), 2):016x}"
