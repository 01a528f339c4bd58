"""Black bars: rows or columns that stay black, with a straight border that the picture reaches along its length."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Plane = NDArray[np.uint8]
_EVERY_S = 0.2
_STEP = 16
"""every 16th column of rows, and row of columns, is looked at"""
_BRIGHT = 6
"""levels above black from which a pixel belongs to the picture"""
_BLACK_SHARE = 0.02
"""share of a row of a bar that may be brighter, as by compression"""
_PICTURE_SHARE = 0.4
"""share of a row at the border that is brighter where the picture begins"""
_OFTEN = 0.4
"""share of the frames in which the picture reaches the border: a moving subject in front of black does not"""
_LEAST = 0.02
"""share of the side that a bar takes"""
_UNEVEN = 0.35
"""largest difference of two opposite bars, as a share of the larger"""


class _Side:
    """The lines along one side: how bright each became, and in how many frames it was part of the picture."""

    def __init__(self) -> None:
        self.brightest = np.zeros(1, np.float32)
        self.in_picture = np.zeros(1, np.int32)
        self.lit = 0

    def add(self, bright: NDArray[np.bool_]) -> None:
        """`bright` (lines, samples along each line)."""
        across: NDArray[np.bool_] = np.any(bright, axis=0)  # of a line, only where there is a picture: between pillars
        length = int(across.sum())
        share = bright.sum(axis=1, dtype=np.int32).astype(np.float32) / max(1, length)
        inside: NDArray[np.bool_] = share >= _PICTURE_SHARE
        means: NDArray[np.float32] = bright.mean(axis=1, dtype=np.float32)
        self.brightest, self.in_picture = np.maximum(self.brightest, means), self.in_picture + inside
        self.lit += bool(inside.any()) and length >= 0.2 * across.size

    def result(self) -> tuple[float, float]:
        """Returns start and end of the picture, as shares of the side."""
        count = len(self.brightest)
        seen = np.flatnonzero(self.brightest > _BLACK_SHARE)
        if not seen.size or not self.lit:
            return 0.0, 1.0
        first, last = int(seen[0]), count - 1 - int(seen[-1])
        near = max(3, count // 100)
        often = _OFTEN * self.lit
        straight = (
            self.in_picture[first : first + near].max() >= often
            and self.in_picture[count - last - near : count - last].max() >= often
        )
        even = abs(first - last) <= max(_UNEVEN * max(first, last), 4)
        if not straight or not even or min(first, last) < max(2, _LEAST * count):
            return 0.0, 1.0
        return round(first / count, 4), round(1 - last / count, 4)


class Bars:
    """Looks at a few frames a second."""

    def __init__(self) -> None:
        self._rows, self._columns = _Side(), _Side()
        self._next_s = float("-inf")

    def add(self, time_s: float, plane: Plane, black: int) -> None:
        if time_s < self._next_s:
            return
        self._next_s = time_s + _EVERY_S
        across, down = (max(1, min(_STEP, side // 20)) for side in (plane.shape[1], plane.shape[0]))
        self._rows.add(plane[:, across // 2 :: across] > black + _BRIGHT)
        self._columns.add(black + _BRIGHT < plane[down // 2 :: down].T)

    def result(self) -> tuple[float, float, float, float] | None:
        """Returns left, top, right and bottom of the picture; None without bars."""
        (top, bottom), (left, right) = self._rows.result(), self._columns.result()
        return None if (left, top, right, bottom) == (0.0, 0.0, 1.0, 1.0) else (left, top, right, bottom)
