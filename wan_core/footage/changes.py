"""Finds changes from frame to frame: hard cuts, repeated frames, flicker."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

Grid = NDArray[np.float32]
_TOP = 0.05
"""share of cells, those that change most, by which frames are compared: a small subject counts"""
_AROUND = 6
"""frames on each side with which a frame is compared"""

_UNLIKE, _UNLIKE_BEFORE = 0.25, 4.0
"""a cut: 1 - correlation of the grids across it, and how many times that of other frames around it"""
_STEP = 6.0
"""grey levels: smallest mean change of a cut"""

_MOVES = 1.0
"""grey levels: change of the top cells from which a repeated frame can be told from a still scene"""
_REPEATS = 0.22
"""a repeated frame changes by less than this share of the usual change around it"""
_DROP = 0.4
"""and by less than this share of both frames beside the run of repeated ones: what slows down does so gradually"""
_RUN = 4
"""frames of a longer run are still, not repeated"""

_LIFT = 12.0
"""grey levels added before the logarithm, so that noise in black does not count"""
_MOST_CELLS = 60
"""per cent of the cells that become brighter or darker together"""
_TURNS = 3.0
"""least number of times a second that a flicker crosses its mean"""


class Changed(NamedTuple):
    """The results."""

    cuts_s: tuple[float, ...]
    repeated: float
    flicker: float


class Changes:
    """Compares each frame with the one and two before it."""

    def __init__(self) -> None:
        self._small: NDArray[np.int16] | None = None
        self._grids: list[Grid] = []
        self._times: list[float] = []
        self._top: list[float] = []
        self._mean: list[float] = []
        self._unlike: list[float] = []
        self._unlike_two: list[float] = []
        self._gain: list[float] = []

    def add(
        self, time_s: float, small: NDArray[np.uint8], grid: Grid, pool: Callable[[NDArray[np.float32]], Grid]
    ) -> None:
        now = small.astype(np.int16)
        self._times.append(time_s)
        if self._small is None or self._small.shape != now.shape:
            self._small, self._grids = now, [grid]
            for values in (self._top, self._mean, self._unlike, self._unlike_two, self._gain):
                values.append(0.0)
            return
        change = np.abs(now - self._small)
        cells = pool(change.astype(np.float32)).ravel()
        few = max(1, round(_TOP * cells.size))
        self._top.append(float(np.partition(cells, -few)[-few:].mean()))
        self._mean.append(float(change.mean()))
        self._unlike.append(_unlike(grid, self._grids[-1]))
        self._unlike_two.append(_unlike(grid, self._grids[0]))
        self._gain.append(_gain(grid, self._grids[-1]))
        self._small, self._grids = now, [self._grids[-1], grid]

    def result(self) -> Changed:
        """Returns the results of all frames."""
        cuts = self._cuts()
        return Changed(tuple(round(self._times[cut], 3) for cut in cuts), self._repeated(cuts), self._flicker(cuts))

    def _cuts(self) -> list[int]:
        """Returns the number of the first frame after each cut."""
        found: list[int] = []
        unlike, count = np.array(self._unlike), len(self._unlike)
        for at in np.flatnonzero((unlike > _UNLIKE) & (np.array(self._mean) > _STEP)).tolist():
            after = self._unlike_two[at + 1] if at + 1 < count else 1.0
            before = self._unlike_two[at]
            around = np.concatenate([unlike[max(1, at - _AROUND) : at], unlike[at + 1 : at + 1 + _AROUND]])
            usual = float(np.median(around)) if around.size else 0.0
            # After a flash of one frame, the frames on both of its sides are alike.
            if min(after, before) > _UNLIKE and unlike[at] > _UNLIKE_BEFORE * usual:
                found.append(at)
        return found

    def _repeated(self, cuts: list[int]) -> float:
        top = np.array(self._top[1:])
        if len(top) < 2 * _AROUND:
            return 0.0
        around = sliding_window_view(np.pad(top, _AROUND, "reflect"), 2 * _AROUND + 1)
        usual = np.median(around, axis=1)
        # With most frames repeated, the median is that of repeated frames.
        usual = np.maximum(usual, np.sort(around, axis=1)[:, -4])
        moves = usual > _MOVES
        if moves.sum() < 2 * _AROUND:
            return 0.0
        found, at = 0, 0
        repeats = moves & (top < _REPEATS * usual)
        while at < len(top):
            end = at
            while end < len(top) and repeats[end]:
                end += 1
            if 0 < end - at <= _RUN and at > 0 and end < len(top):
                found += (end - at) * bool(top[at:end].max() < _DROP * min(top[at - 1], top[end]))
            at = end + 1
        return round(found / float(moves.sum()), 4)

    def _flicker(self, cuts: list[int]) -> float:
        seconds = self._times[-1] - self._times[0] if self._times else 0.0
        gain = np.array(self._gain)
        if seconds < 0.4:
            return 0.0
        gain[cuts] = 0.0
        level = np.cumsum(gain)
        wide = max(3, round((len(level) - 1) / seconds) // 2 * 2 + 1)
        padded = np.pad(level, wide // 2, "reflect", reflect_type="odd")[: len(level) + wide - 1]
        away = level - sliding_window_view(padded, wide).mean(axis=1)
        size = float(np.percentile(np.abs(away), 75))
        signs = np.sign(away[np.abs(away) > size / 4])
        turns = float((signs[1:] != signs[:-1]).sum()) / seconds
        return round(size, 4) if turns >= _TURNS else 0.0


def _gain(grid: Grid, before: Grid) -> float:
    """Returns the logarithm of how many times as bright the picture is: what most cells and their mean agree on."""
    low, high = np.percentile(np.log((grid + _LIFT) / (before + _LIFT)), (100 - _MOST_CELLS, _MOST_CELLS)).tolist()
    mean = float(np.log((grid.mean() + _LIFT) / (before.mean() + _LIFT)))
    return min(max(low, 0.0), max(mean, 0.0)) + max(min(high, 0.0), min(mean, 0.0))


def _unlike(one: Grid, other: Grid) -> float:
    """Returns 1 - correlation of two grids, 0 to 2. A few grey levels of noise in flat pictures do not count."""
    a, b = one - one.mean(), other - other.mean()
    floor = 4.0 * a.size  # a deviation of two levels
    return 1.0 - (float((a * b).sum()) + floor) / (float(np.sqrt((a * a).sum() * (b * b).sum())) + floor)
