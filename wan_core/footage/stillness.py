"""Measures motion, and stillness at the start and end."""

from __future__ import annotations

import collections

import numpy as np
from numpy.typing import NDArray

Grid = NDArray[np.float32]
_APART_S = 0.25
"""seconds between the frames that are compared for `motion`"""
_MOST = 64
"""frames kept for that comparison: more than a quarter of a second at 240 frames a second"""
_CHANGED = 4.0
"""grey levels by which a cell of the grid changes when something moves there"""
_STILL = 3.0
"""grey levels below which cells of a still picture stay"""
_FEW_CELLS = 2
"""number of cells that may change more in a still picture, as by an encoder at its edges"""


class Stillness:
    """Follows the mean brightness of each cell, corrected for changes of the complete picture."""

    def __init__(self) -> None:
        self._recent: collections.deque[tuple[float, Grid]] = collections.deque(maxlen=_MOST)
        self._anchor: Grid | None = None
        self._first_change_s: float | None = None
        self._start_s = self._anchor_s = 0.0
        self._changed, self._compared = 0.0, 0

    def add(self, time_s: float, grid: Grid) -> None:
        if self._anchor is None or self._anchor.shape != grid.shape:
            self._anchor, self._anchor_s, self._start_s = grid, time_s, time_s
        elif int((_apart(grid, self._anchor) > _STILL).sum()) > _FEW_CELLS:
            if self._first_change_s is None:
                self._first_change_s = time_s
            self._anchor, self._anchor_s = grid, time_s
        self._recent.append((time_s, grid))
        while len(self._recent) > 1 and time_s - self._recent[1][0] >= _APART_S - 1e-6:
            self._recent.popleft()
        before_s, before = self._recent[0]
        if time_s - before_s >= _APART_S - 1e-6:
            self._changed += float((_apart(grid, before) > _CHANGED).mean())
            self._compared += 1

    def result(self, end_s: float) -> tuple[float, float, float]:
        """Returns still_start_s, still_end_s and motion of Measures."""
        motion = round(self._changed / max(1, self._compared), 4)
        if self._first_change_s is None:
            return round(end_s - self._start_s, 3), round(end_s - self._start_s, 3), motion
        return round(self._first_change_s - self._start_s, 3), round(end_s - self._anchor_s, 3), motion


def _apart(grid: Grid, other: Grid) -> Grid:
    """Returns the change of each cell (h, w), without a gain that all cells share: a fade or flicker is no motion."""
    power = float((other * other).sum())
    gain = min(2.0, max(0.5, float((grid * other).sum()) / power)) if power > grid.size else 1.0
    return np.abs(grid - gain * other)
