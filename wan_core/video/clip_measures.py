"""Measures what can be said of a clip without an opinion: how much of it is empty, how it flickers, whether it shows a
grid, and how like another one it is. Pure; of a long clip a few frames speak for all.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Frames = NDArray[np.uint8]
_LUMA = np.array([0.299, 0.587, 0.114], dtype=np.float32)
"""ITU-R BT.601"""
_FEW = 5
_BLOCK = 8
"""pixels: what the VAE makes of one latent, and the window of the likeness"""
_FLAT = 2.0
"""of 255: a frame whose brightness spreads less shows nothing"""


def measure_clip(frames: Frames, base: Frames | None = None) -> dict[str, float]:
    """Returns the measures of a clip (F, H, W, 3) in [0, 255]; `ssim` only where there is a `base` of its shape.

    - `empty`: share of frames of one colour, black ones among them, 0 to 1;
    - `flicker`: mean change of a frame's brightness to the next, on a scale of 0 to 1;
    - `grid`: how much stronger edges are at the borders of 8 pixels than elsewhere, as a share; 0 without a grid;
    - `ssim`: structural similarity to the base (Wang et al. 2004, on windows of 8 pixels), 1 for equal clips.
    """
    small = np.ascontiguousarray(frames[:, ::2, ::2]).astype(np.float32) @ _LUMA
    brightness = small.mean(axis=(1, 2))
    found = {
        "empty": float((small.std(axis=(1, 2)) < _FLAT).mean()),
        "flicker": float(np.abs(np.diff(brightness)).mean() / 255) if len(frames) > 1 else 0.0,
        "grid": _grid(_few(frames)),
    }
    if base is not None and base.shape == frames.shape:
        found["ssim"] = _ssim(_few(frames), _few(base))
    return {name: round(value, 4) for name, value in found.items()}


def _few(frames: Frames) -> NDArray[np.float32]:
    """Returns the brightness of a few frames, evenly spaced, (f, H, W)."""
    chosen = np.linspace(0, len(frames) - 1, min(_FEW, len(frames))).round().astype(int)
    return frames[chosen].astype(np.float32) @ _LUMA


def _grid(luma: NDArray[np.float32]) -> float:
    """A grid is at all borders: medians, so that one strong edge of the picture itself is none."""
    ratios = []
    for axis in (1, 2):
        edges = np.abs(np.diff(luma, axis=axis)).mean(axis=tuple(i for i in (0, 1, 2) if i != axis))
        at_border = np.arange(1, len(edges) + 1) % _BLOCK == 0
        if at_border.any() and (elsewhere := float(np.median(edges[~at_border]))) > 0:
            ratios.append(float(np.median(edges[at_border])) / elsewhere - 1)
    return max(0.0, float(np.mean(ratios))) if ratios else 0.0


def _ssim(one: NDArray[np.float32], other: NDArray[np.float32]) -> float:
    a, b = _windows(one), _windows(other)
    mean_a, mean_b = a.mean(-1), b.mean(-1)
    both = ((a - mean_a[..., None]) * (b - mean_b[..., None])).mean(-1)
    c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    likeness = (2 * mean_a * mean_b + c1) * (2 * both + c2)
    return float((likeness / ((mean_a**2 + mean_b**2 + c1) * (a.var(-1) + b.var(-1) + c2))).mean())


def _windows(luma: NDArray[np.float32]) -> NDArray[np.float32]:
    """Returns windows of 8 by 8 pixels, (windows, 64); what does not fill one is left out."""
    count, height, width = (*luma.shape[:1], luma.shape[1] // _BLOCK, luma.shape[2] // _BLOCK)
    cut = luma[:, : height * _BLOCK, : width * _BLOCK].reshape(count, height, _BLOCK, width, _BLOCK)
    return cut.transpose(0, 1, 3, 2, 4).reshape(-1, _BLOCK * _BLOCK)
