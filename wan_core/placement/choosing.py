"""Chooses the measures of a job: the cheapest ones with which it fits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

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
    found = predict(replace(base, offload_inputs=offload, blocks_to_swap=blocks))
    if not room.lacks(found) or swap is not None or most_blocks == 0:
        return found
    strongest = predict(replace(base, offload_inputs=offload, blocks_to_swap=most_blocks))
    if room.lacks(strongest):
        return strongest
    few, enough, best = 0, most_blocks, strongest
    while enough - few > 1:
        middle = (few + enough) // 2
        tried = predict(replace(base, offload_inputs=offload, blocks_to_swap=middle))
        if room.lacks(tried):
            few = middle
        else:
            enough, best = middle, tried
    return best
