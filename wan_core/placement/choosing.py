"""Chooses the measures of a job: the cheapest ones with which it fits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

from .cards import Room
from .estimate import MemoryEstimate
from .measures import MemoryMeasures

Predict = Callable[[MemoryMeasures], MemoryEstimate]


def choose_measures(
    predict: Predict,
    room: Room,
    *,
    offload: bool | None = None,
    swap: int | None = None,
    most_blocks: int,
    base: MemoryMeasures | None = None,
) -> MemoryEstimate:
    """Returns the estimate of the cheapest measures that fit into `room`; of the strongest where none do.

    In the order of what they cost: nothing; inputs of blocks in host memory, which travel while others are computed;
    and with them as few blocks as need be whose weights do, which double what travels. `offload` and `swap`, where they
    are given, are taken as they are. `most_blocks`: how many blocks may rest in host memory. `base`: the measures that
    are taken in any case.
    """
    base, blocks = base or MemoryMeasures(), swap or 0
    if offload is None:
        found = predict(replace(base, offload_inputs=False, blocks_to_swap=blocks))
        if not room.lacks(found):
            return found
        offload = True

    @cache
    def swapping(count: int) -> MemoryEstimate:
        return predict(replace(base, offload_inputs=offload, blocks_to_swap=count))

    if swap is not None or not room.lacks(swapping(blocks)):
        return swapping(blocks)
    spared = largest(most_blocks, lambda spared: not room.lacks(swapping(most_blocks - spared)))
    return swapping(most_blocks - spared)


def largest(most: int, fits: Callable[[int], bool]) -> int:
    """Returns the largest of 1 to `most` that fits; 0 where none does. What fits must fit with less too."""
    if most < 1 or not fits(1):
        return 0
    few, many = 1, most + 1
    while many - few > 1:
        middle = (few + many) // 2
        few, many = (middle, many) if fits(middle) else (few, middle)
    return few
