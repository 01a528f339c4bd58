"""Measures what only the full picture shows: blur, and the combs of interlaced frames."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Plane = NDArray[np.uint8]
_BANDS, _WIDE = 16, 4
"""number of bands of columns that are looked at for combs, and their width: few lines of memory are read"""
_MOVED = 12
"""grey levels by which a pixel changes where something moves"""
_MOVED_SHARE = 0.001
"""share of pixels that move in a frame that can be judged"""
_COMBED = 1.1
"""a frame is combed if neighbouring lines differ by this multiple of what lines two apart do: 0.5 to 0.9 in pictures, 1
in noise, 1.5 to 5 in combs"""
_LEANS, _LEAST_MOTION = 0.25, 2.0
"""part of the motion of a frame by which its lower field is late or early, 0 or 0.5; and the grey levels a frame by
which a pixel must change to be counted"""

_EVERY_S, _MOST_FRAMES = 0.5, 48
"""seconds between the frames whose blur is measured, and the largest number of them"""
_LINES = 60
"""number of rows, and of columns, that are looked at for blur"""
_AGAIN = 2.0
"""standard deviation in pixels of the blur that edges are compared with"""
_LEAST_EDGE = 8.0
"""grey levels over two pixels from which an edge is measured"""

_SHARPER, _SHARPER_FRAMES = 10, 25
"""percentile of the edges of a frame: what is out of focus behind a subject does not count; and of the frames"""


class Combs:
    """Looks at every frame, because two of five are combed in film at the rate of television.

    Fast motion shows as combs. In slow motion the lower field is compared with the mean of the lines around it: the
    difference follows the motion from the frame before to the frame after, in which the frame's own noise is not.
    """

    def __init__(self) -> None:
        self._before: NDArray[np.int16] | None = None
        self._combed: list[bool] = []
        self._fields: list[tuple[NDArray[np.int16], NDArray[np.int16]]] = []
        self._late: list[int] = []

    def add(self, plane: Plane) -> None:
        apart = max(1, plane.shape[1] // _BANDS)
        bands = plane[:, : plane.shape[1] // apart * apart].reshape(len(plane), -1, apart)[:, :, :_WIDE]
        now = bands.astype(np.int16).reshape(len(plane), -1)
        before, self._before = self._before, now
        if len(now) < 16 or (before is not None and before.shape != now.shape):
            self._fields = []
            return
        self._compare_fields(now)
        if before is None:
            return
        moved = (np.abs(now - before) > _MOVED)[:-2]
        if moved.sum() < max(24, _MOVED_SHARE * moved.size):
            return
        near = np.abs(now[:-2] - now[1:-1])[moved].sum(dtype=np.int64)
        far = np.abs(now[:-2] - now[2:])[moved].sum(dtype=np.int64)
        self._combed.append(bool(near > _COMBED * max(1, far)))

    def _compare_fields(self, now: NDArray[np.int16]) -> None:
        upper = now[: len(now) // 2 * 2 : 2]
        twice = upper[:-1] + upper[1:]
        self._fields = [*self._fields[-2:], (2 * now[1 : 2 * len(upper) - 1 : 2] - twice, twice)]
        if len(self._fields) < 3:
            return
        motion = (self._fields[2][1] - self._fields[0][1]) / np.float32(2)
        counted = np.abs(motion) > 2 * _LEAST_MOTION
        if counted.sum() > max(24, _MOVED_SHARE * counted.size):
            moving = motion[counted]
            late = float(self._fields[1][0][counted] @ moving / (moving @ moving))
            self._late.append(int(late > _LEANS) - int(late < -_LEANS))

    def result(self) -> tuple[float, bool]:
        """Returns combed and pulldown of Measures."""
        shares = [abs(sum(judged)) / len(judged) for judged in (self._combed, self._late) if len(judged) >= 5]
        share = max(shares, default=0.0)
        return round(share, 4), 0.2 <= share <= 0.6


class Blur:
    """Blurs strong edges again, in one dimension: the sharper an edge, the more its slope falls.

    An edge of standard deviation s, blurred by r, has a slope that is sqrt(1 + r^2 / s^2) times as small.
    """

    def __init__(self) -> None:
        self._next_s = float("-inf")
        self._found: list[float] = []

    def add(self, time_s: float, plane: Plane) -> None:
        if time_s < self._next_s or len(self._found) >= _MOST_FRAMES or min(plane.shape) < 32:
            return
        self._next_s = time_s + _EVERY_S
        rows, columns = (max(1, side // _LINES) for side in plane.shape)
        along = plane[rows // 2 :: rows].astype(np.float32)
        down = plane[:, columns // 2 :: columns].T.astype(np.float32, order="C")
        found = [width for lines in (along, down) if (width := _edge_width(lines)) is not None]
        if found:
            self._found.append(min(found))

    def result(self) -> float:
        """Returns blur_px of Measures: that of the sharper frames, because motion blurs others."""
        return round(float(np.percentile(self._found, _SHARPER_FRAMES)), 2) if self._found else 0.0


def _edge_width(lines: NDArray[np.float32]) -> float | None:
    """Returns the standard deviation of the blur of the strongest edges of lines (n, length); None without edges."""
    kernel = np.exp(-0.5 * (np.arange(-6, 7) / _AGAIN) ** 2).astype(np.float32)
    kernel /= kernel.sum()
    steep = np.abs(lines[:, 2:] - lines[:, :-2])
    # Noise has a slope everywhere; edges stand out of it.
    usual, strong = np.percentile(steep.ravel()[::7], (50, 99.5)).tolist()
    least = max(_LEAST_EDGE, 5 * usual, strong)
    inner = steep[:, 6:-6]
    peak = (inner >= least) & (inner >= steep[:, 5:-7]) & (inner >= steep[:, 7:-5])
    if peak.sum() < 30:
        return None
    soft = np.zeros_like(lines[:, 6:-6])
    for shift, weight in enumerate(kernel):
        soft += weight * lines[:, shift : lines.shape[1] - 12 + shift]
    again = np.abs(soft[:, 2:] - soft[:, :-2])[peak]
    ratio = np.maximum(inner[peak] / np.maximum(again, 0.1), 1.0005)
    return float(np.percentile(_AGAIN / np.sqrt(ratio**2 - 1), _SHARPER))
