"""How long an epoch is, by bucket: batches never mix buckets, so a small bucket wastes part of its last batch."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...bucket import Bucket
from ..sample import Sample
from .files import count, one_per_file

__all__ = ["epoch_lines", "seen_per_epoch"]

BATCH_SIZES = (1, 2, 4)


def seen_per_epoch(samples: Sequence[Sample]) -> float:
    """How many samples one epoch trains on: with repeats and weights (then on average), and one of those that take
    turns.
    """
    return math.fsum(sample.repeats * sample.weight for sample in samples if sample.turn == 0)


def epoch_lines(samples: Sequence[Sample]) -> list[str]:
    """A line per bucket, the largest first, and one for all."""
    groups: dict[Bucket, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(sample.bucket, []).append(sample)
    mean = ", on average" if any(sample.weight != 1 for sample in samples) else ""
    lines = [f"an epoch{mean}, in batches of {' / '.join(map(str, BATCH_SIZES))}:"]
    totals = [0] * len(BATCH_SIZES)
    for bucket, members in sorted(groups.items(), key=lambda group: (-len(group[1]), group[0])):
        batches = [math.ceil(seen_per_epoch(members) / size - 1e-9) for size in BATCH_SIZES]
        totals = [total + more for total, more in zip(totals, batches, strict=True)]
        lines.append(f"  {bucket}: {_members(members)}, {_batches(batches)}")
    if len(groups) > 1:
        lines.append(f"  all: {_members(samples)}, {_batches(totals)}")
    return lines


def _members(samples: Sequence[Sample]) -> str:
    files = one_per_file(samples)
    stills = sum(sample.kind == "still" for sample in files)
    kinds = [count(number, noun) for number, noun in ((len(files) - stills, "clip"), (stills, "still")) if number]
    windows = f", {count(len(samples), 'sample')}" if len(samples) > len(files) else ""
    return " + ".join(kinds) + windows


def _batches(numbers: list[int]) -> str:
    return " / ".join(f"{number:,}" for number in numbers) + " batches"
