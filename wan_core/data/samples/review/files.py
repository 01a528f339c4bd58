"""The files behind samples, each once, and how numbers are said."""

from __future__ import annotations

from collections.abc import Iterable

from ..sample import Sample

__all__ = ["count", "names", "one_per_file"]


def one_per_file(samples: Iterable[Sample]) -> list[Sample]:
    """The first sample of every file, in order."""
    return list({sample.path: sample for sample in reversed(list(samples))}.values())[::-1]


def count(number: int, noun: str) -> str:
    """ "1 clip", "2 clips"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def names(members: Iterable[str], limit: int = 8) -> str:
    """The first few names, and how many more there are."""
    every = list(members)
    rest = len(every) - limit
    return ", ".join(every[:limit]) + (f" and {rest:,} more" if rest > 0 else "")
