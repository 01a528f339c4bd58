"""One curve of a run in at most 2,000 points, kept as they come: neighbouring steps share a bucket."""

from __future__ import annotations

from typing import Any

from .pages import finite

_MOST_POINTS = 2000

Point = tuple[float, float]


class Series:
    """One curve: (step, value) in order of their coming."""

    def __init__(self) -> None:
        self.width = 1
        """steps that share a bucket"""
        self.buckets: dict[int, list[Any]] = {}
        """by number: [pass, points, sum of values, count, sum of steps]"""
        self.length = 0
        self.first: Point | None = None
        self.newest: Point | None = None
        self.passes = 0

    def add(self, step: float, value: float) -> None:
        """A step at or below the newest is trained again by a resumed run: of each step the newest value counts."""
        if self.newest is not None and step <= self.newest[0]:
            self.passes += 1
        self.newest = (step, value)
        if self.first is None or step <= self.first[0]:
            self.first = self.newest
        index = int(step // self.width)
        bucket = self.buckets.get(index)
        if bucket is None:
            bucket = self.buckets[index] = [self.passes, [], 0.0, 0, 0]
        points = bucket[1]
        before = len(points)
        if bucket[0] != self.passes:
            kept = [point for point in points if point[0] < step]
            bucket[:] = [self.passes, [], 0.0, 0, 0]
            for point in kept:
                _put(bucket, point)
        _put(bucket, (step, value))
        self.length += len(bucket[1]) - before
        while self.length > _MOST_POINTS:
            self._coarsen()

    def _coarsen(self) -> None:
        self.width *= 2
        merged: dict[int, list[Any]] = {}
        for index in sorted(self.buckets):
            bucket, into = self.buckets[index], merged.get(index >> 1)
            if into is None:
                merged[index >> 1] = bucket
            else:
                into[1] = _extremes([*into[1], *bucket[1]])
                into[0] = max(into[0], bucket[0])
                for place in (2, 3, 4):
                    into[place] += bucket[place]
        self.buckets = merged
        self.length = sum(len(bucket[1]) for bucket in merged.values())

    def to_dict(self) -> dict[str, Any]:
        """Returns it as the page restores it."""
        rows = [
            [index, *bucket[:1], *bucket[2:], *(number for point in bucket[1] for number in point)]
            for index, bucket in sorted(self.buckets.items())
        ]
        ends = [self.first, self.newest] if self.first else []
        return {"width": self.width, "pass": self.passes, "ends": ends, "buckets": rows}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Series:
        """Raises ValueError, TypeError or LookupError for anything that `to_dict` does not return."""
        series = cls()
        series.width, series.passes = int(data["width"]), int(data["pass"])
        if data["ends"]:
            (first, first_value), (newest, value) = data["ends"]
            series.first, series.newest = (number(first), float(first_value)), (number(newest), float(value))
        for index, passed, total, count, middle, *rest in data["buckets"]:
            numbers = iter([number(value) for value in rest])
            points = list(zip(numbers, numbers, strict=True))
            series.buckets[int(index)] = [int(passed), points, float(total), int(count), number(middle)]
            series.length += len(points)
        return series


def _put(bucket: list[Any], point: Point) -> None:
    points = bucket[1]
    if len(points) < 2:
        points.append(point)
    else:
        bucket[1] = _extremes([*points, point])
    bucket[2] += point[1]
    bucket[3] += 1
    bucket[4] += point[0]


def _extremes(points: list[Point]) -> list[Point]:
    """The lowest and the highest of a few points in order of their step; the first and last where all are alike."""
    if len(points) <= 2:
        return points
    low = min(points, key=_value)
    high = max(points, key=_value)
    if low is high:
        return [points[0], points[-1]]
    return [low, high] if low[0] < high[0] else [high, low]


def _value(point: Point) -> float:
    return point[1]


def number(value: object) -> float:
    """A finite number as it is, whole ones whole."""
    number = finite(value)
    if number is None:
        raise ValueError("not a number")
    return int(number) if number.is_integer() else number
