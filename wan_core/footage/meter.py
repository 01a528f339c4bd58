"""Measures a shot frame by frame: each frame is seen once, and only small grids and a few numbers are kept."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .bars import Bars
from .changes import Changes
from .detail import Blur, Combs
from .measures import Measures
from .overlays import Overlays
from .stillness import Stillness

SMALL_WIDTH = 320
"""width of the small picture in pixels; its height follows the aspect ratio"""
_CELL = 8
"""side of a cell of the grid, in pixels of the small picture"""


class Luma(NamedTuple):
    """The brightness of a frame."""

    time_s: float
    plane: NDArray[np.uint8]
    """(H, W): all pixels, as stored"""
    small: NDArray[np.uint8]
    """(h, w): averaged to SMALL_WIDTH, with black at 0"""
    black: int
    """level of black in `plane`: 16 for video range, 0 for full range"""


class Meter:
    """The measures of one shot. Frames are added in order; `result` ends the shot."""

    def __init__(self) -> None:
        self._start_s = self._end_s = 0.0
        self._frames = 0
        self._changes, self._stillness = Changes(), Stillness()
        self._bars, self._overlays = Bars(), Overlays()
        self._blur, self._combs = Blur(), Combs()

    def add(self, luma: Luma) -> None:
        """Measures one frame."""
        if not self._frames:
            self._start_s = luma.time_s
        self._frames += 1
        self._end_s = luma.time_s
        grid = _pooled(luma.small.astype(np.float32))
        self._changes.add(luma.time_s, luma.small, grid, _pooled)
        self._stillness.add(luma.time_s, grid)
        self._combs.add(luma.plane)
        self._bars.add(luma.time_s, luma.plane, luma.black)
        self._overlays.add(luma.time_s, luma.small)
        self._blur.add(luma.time_s, luma.plane)

    def result(self, end_s: float) -> Measures:
        """Returns the measures of a shot that lasts until `end_s`."""
        moved = self._changes.result()
        still_start_s, still_end_s, motion = self._stillness.result(end_s)
        combed, pulldown = self._combs.result()
        overlay, overlay_share = self._overlays.result()
        return Measures(
            start_s=round(self._start_s, 4),
            end_s=round(end_s, 4),
            motion=motion,
            still_start_s=still_start_s,
            still_end_s=still_end_s,
            repeated=moved.repeated,
            flicker=moved.flicker,
            cuts_s=moved.cuts_s,
            combed=combed,
            pulldown=pulldown,
            blur_px=self._blur.result(),
            bars=self._bars.result(),
            overlay=overlay,
            overlay_share=overlay_share,
        )


def _pooled(picture: NDArray[np.float32]) -> NDArray[np.float32]:
    """Averages a small picture (h, w) over cells of 8 x 8 pixels, (h // 8, w // 8); pixels beyond the last complete
    cell are left out."""
    rows, columns = (_averaging(side) for side in picture.shape)
    return rows @ picture @ columns.T


@lru_cache(maxsize=8)
def _averaging(side: int) -> NDArray[np.float32]:
    """Returns the matrix (cells, side) that averages a side over cells."""
    wide = min(_CELL, side)
    matrix = np.zeros((side // wide, side), np.float32)
    for cell, row in enumerate(matrix):
        row[cell * wide : (cell + 1) * wide] = 1 / wide
    return matrix
