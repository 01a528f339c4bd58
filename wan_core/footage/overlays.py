"""Burnt-in text and logos: edges on both sides of thin strokes that stay in place while most other edges move."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

Edges = NDArray[np.int16]
_EVERY_S, _WINDOW_S = 0.1, 0.8
"""seconds between the frames that are looked at; seconds for which an edge has to stay"""
_EDGE = 14
"""grey levels between two pixels of an edge"""
_MOSTLY_STILL = 0.4
"""share of the other edges that stay from which a scene is too still to tell an overlay from it"""
_IN_TEXT = 0.5
"""share of the edges that stay which is inside of cells with text"""
_FEWEST_EDGES = 40
_CELL = 8
_STROKES = 3
"""static edges of either direction in a cell with text"""
_STAYING = 0.6
"""share of the edges of a cell with text that stay"""
_FEWEST, _MOST = 4, 0.2
"""number of cells of an overlay, and largest share of the picture"""
_FILLED = 0.4
"""share of a rectangle around lines of text that has text; an outline has less"""
_SEEN = 0.3
"""share of the windows that can be judged in which an overlay is seen"""
_MARGIN = 3
"""pixels of the small picture at its sides that are not looked at"""


class Overlays:
    """Keeps the smallest and largest difference of neighbouring pixels over a window of time."""

    def __init__(self) -> None:
        self._next_s = self._until_s = float("-inf")
        self._low: Edges | None = None
        self._high: Edges | None = None
        self._edges, self._frames = np.zeros((0, 0), np.int16), 0
        self._judged = self._seen = 0
        self._cells: Counter[tuple[int, int]] = Counter()
        self._shape = (1, 1)

    def add(self, time_s: float, small: NDArray[np.uint8]) -> None:
        if time_s < self._next_s:
            return
        self._next_s = time_s + _EVERY_S
        inside = small[_MARGIN:-_MARGIN, _MARGIN:-_MARGIN].astype(np.int16)
        if min(inside.shape, default=0) < 2 * _CELL:
            return
        self._shape = small.shape
        edges = inside[:, 1:] - inside[:, :-1]
        low, high = self._low, self._high
        if low is None or high is None or low.shape != edges.shape:
            low, high, self._frames = edges.copy(), edges.copy(), 0
            self._edges = np.zeros(edges.shape, np.int16)
            self._until_s = time_s + _WINDOW_S
        self._low, self._high = np.minimum(low, edges), np.maximum(high, edges)
        self._edges += np.abs(edges) > _EDGE
        self._frames += 1
        if time_s >= self._until_s:
            self._judge(self._low > _EDGE, self._high < -_EDGE, _counted(self._edges) / self._frames)
            self._low = self._high = None

    def _judge(self, up: NDArray[np.bool_], down: NDArray[np.bool_], usual: NDArray[np.float64]) -> None:
        """Judges one window; `usual`: mean number of edges in each cell of a frame."""
        rises, falls = _counted(up), _counted(down)
        stays = rises + falls
        text = (rises >= _STROKES) & (falls >= _STROKES) & (stays >= _STAYING * usual)
        if usual.sum() < _FEWEST_EDGES or stays[~text].sum() > _MOSTLY_STILL * max(1.0, usual[~text].sum()):
            return
        self._judged += 1
        if _FEWEST <= text.sum() <= _MOST * text.size and stays[text].sum() >= _IN_TEXT * stays.sum():
            self._seen += 1
            self._cells.update((int(row), int(column)) for row, column in np.argwhere(text))

    def result(self) -> tuple[tuple[float, float, float, float] | None, float]:
        """Returns overlay and overlay_share of Measures."""
        share = self._seen / max(1, self._judged)
        groups = _groups({place for place, seen in self._cells.items() if seen >= 0.5 * self._seen})
        found = [group for group in groups if len(group) >= _FEWEST and len(group) >= _FILLED * _area(group)]
        if share < _SEEN or not found:
            return None, 0.0
        top, left, bottom, right = _box(max(found, key=len))
        height, width = self._shape
        places = [_MARGIN + _CELL * side for side in (left, top, right, bottom)]
        shares = [min(1.0, place / side) for place, side in zip(places, (width, height) * 2, strict=True)]
        return (round(shares[0], 3), round(shares[1], 3), round(shares[2], 3), round(shares[3], 3)), round(share, 3)


def _groups(cells: set[tuple[int, int]]) -> list[set[tuple[int, int]]]:
    """Returns groups of cells with at most one other cell between neighbours, as between words."""
    left, groups = set(cells), list[set[tuple[int, int]]]()
    while left:
        group, edge = set[tuple[int, int]](), {left.pop()}
        while edge:
            group |= edge
            edge = {one for one in left for row, column in edge if abs(row - one[0]) <= 2 and abs(column - one[1]) <= 2}
            left -= edge
        groups.append(group)
    return groups


def _box(cells: set[tuple[int, int]]) -> tuple[int, int, int, int]:
    rows, columns = [row for row, _ in cells], [column for _, column in cells]
    return min(rows), min(columns), max(rows) + 1, max(columns) + 1


def _area(cells: set[tuple[int, int]]) -> int:
    top, left, bottom, right = _box(cells)
    return (bottom - top) * (right - left)


def _counted(edges: NDArray[Any]) -> NDArray[np.int64]:
    rows, columns = (side // _CELL for side in edges.shape)
    cut = edges[: rows * _CELL, : columns * _CELL].reshape(rows, _CELL, columns, _CELL)
    return cut.sum(axis=(1, 3))
