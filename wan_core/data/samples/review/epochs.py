"""How long an epoch is, by bucket: batches never mix buckets, so a small bucket wastes part of its last batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ...bucket import Bucket
from ..sample import Sample
from .files import count, one_per_file

__all__ = ["BATCH_SIZES", "BucketRow", "epoch_lines", "epoch_rows", "is_averaged", "seen_per_epoch"]

BATCH_SIZES = (1, 2, 4)


def seen_per_epoch(samples: Sequence[Sample]) -> float:
    """How many samples one epoch trains on: with repeats and weights (then on average), and one of those that take
    turns.
    """
    return math.fsum(sample.repeats * sample.weight for sample in samples if sample.turn == 0)


@dataclass(frozen=True, kw_only=True)
class BucketRow:
    """What one bucket gives to an epoch."""

    bucket: Bucket | None
    """None: all of them together"""
    clips: int
    """files; of those cut into several samples, each once"""
    stills: int
    samples: int
    batches: tuple[int, ...]
    """in an epoch, for each of BATCH_SIZES"""


def is_averaged(samples: Sequence[Sample]) -> bool:
    """True when weights make the batches of an epoch a mean."""
    return any(sample.weight != 1 for sample in samples)


def epoch_rows(samples: Sequence[Sample]) -> list[BucketRow]:
    """A row per bucket, the largest first, and one for all where there are several."""
    groups: dict[Bucket, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(sample.bucket, []).append(sample)
    rows: list[BucketRow] = []
    for bucket, members in sorted(groups.items(), key=lambda group: (-len(group[1]), group[0])):
        seen = seen_per_epoch(members)
        rows.append(_row(bucket, members, tuple(math.ceil(seen / size - 1e-9) for size in BATCH_SIZES)))
    if len(rows) > 1:
        totals = tuple(sum(numbers) for numbers in zip(*(row.batches for row in rows), strict=True))
        rows.append(_row(None, samples, totals))
    return rows


def epoch_lines(rows: Sequence[BucketRow], *, averaged: bool) -> list[str]:
    """`epoch_rows` as text, a line each under a heading."""
    mean = ", on average" if averaged else ""
    lines = [f"an epoch{mean}, in batches of {' / '.join(map(str, BATCH_SIZES))}:"]
    for row in rows:
        batches = " / ".join(f"{number:,}" for number in row.batches)
        lines.append(f"  {row.bucket or 'all'}: {_members(row)}, {batches} batches")
    return lines


def _row(bucket: Bucket | None, samples: Sequence[Sample], batches: tuple[int, ...]) -> BucketRow:
    files = one_per_file(samples)
    stills = sum(sample.kind == "still" for sample in files)
    return BucketRow(bucket=bucket, clips=len(files) - stills, stills=stills, samples=len(samples), batches=batches)


def _members(row: BucketRow) -> str:
    kinds = [count(number, noun) for number, noun in ((row.clips, "clip"), (row.stills, "still")) if number]
    windows = f", {count(row.samples, 'sample')}" if row.samples > row.clips + row.stills else ""
    return " + ".join(kinds) + windows
