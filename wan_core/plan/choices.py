"""Chooses memory measures: some are fixed by the settings, the others are chosen by the planner."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial

from ..model import CHUNK_TOKENS
from ..placement import FreeMemory, JobShape, MemoryEstimate, MemoryMeasures
from ..train import TrainConfig
from .workload import Workload

_SHORTEST_CHUNK = 1024
"""tokens of a chunk if no larger chunk fits"""
_WIDTH = 5120
"""values of a token in the 14B model, for which CHUNK_TOKENS is chosen"""
_LONGEST_CHUNK = 16_384


def requested_measures(train: TrainConfig) -> MemoryMeasures:
    """Returns the measures that the settings request, without any that they leave to the planner."""
    return MemoryMeasures(
        offload_inputs=_offloads(train) and train.gradient_checkpointing,
        blocks_to_swap=max(train.blocks_to_swap, 0),
    )


def _offloads(train: TrainConfig) -> bool:
    return train.offload_activations == "on" or bool(train.keeps.offloaded)


@dataclass(frozen=True)
class OpenMeasures:
    """The measures that the settings fix; None: the planner chooses."""

    offload: bool | None = None
    swap: int | None = None
    most_blocks: int = 0
    """the most swapped blocks"""

    @classmethod
    def of(cls, train: TrainConfig, shape: JobShape) -> OpenMeasures:
        requested, layers = requested_measures(train), shape.shape.num_layers + len(shape.shape.vace_layers)
        requested = replace(requested, blocks_to_swap=min(requested.blocks_to_swap, layers))
        if train.memory == "manual":
            return cls(requested.offload_inputs, requested.blocks_to_swap)
        # A block without checkpointing needs its weights on the device until its backward pass.
        can_swap = train.gradient_checkpointing and not train.unchecked_blocks
        is_open = train.gradient_checkpointing and train.offload_activations == "auto" and not _offloads(train)
        return cls(
            offload=None if is_open else requested.offload_inputs,
            swap=None if can_swap and train.blocks_to_swap < 0 else requested.blocks_to_swap,
            most_blocks=layers if can_swap else 0,
        )

    def strongest(self, base: MemoryMeasures) -> MemoryMeasures:
        """Returns `base` with the free measures that need the least device memory."""
        offload = True if self.offload is None else self.offload
        swap = self.most_blocks if self.swap is None else self.swap
        return replace(base, offload_inputs=offload, blocks_to_swap=swap)

    def cheapest(
        self, predict: Callable[[MemoryMeasures], MemoryEstimate], room: FreeMemory, base: MemoryMeasures | None = None
    ) -> MemoryEstimate:
        """Returns the estimate of `base` with the cheapest measures that fit into `room`; the strongest if none do.

        The cheapest is no measure, then offloaded inputs of blocks, copied while other blocks are computed, then as few
        swapped blocks as suffice, whose weights are copied too.
        """
        base, blocks, most = base or MemoryMeasures(), self.swap or 0, self.most_blocks
        if self.offload is None:
            found = predict(replace(base, offload_inputs=False, blocks_to_swap=blocks))
            if not room.lacks(found):
                return found

        @cache
        def swapping(count: int) -> MemoryEstimate:
            return predict(replace(base, offload_inputs=self.offload is not False, blocks_to_swap=count))

        if self.swap is not None or not room.lacks(swapping(blocks)):
            return swapping(blocks)
        return swapping(most - largest(most, lambda spared: not room.lacks(swapping(most - spared))))


def fewest_measures(job: Workload, shape: JobShape, room: FreeMemory) -> MemoryEstimate:
    """Returns the estimate under the fewest measures that fit; under the strongest if none do."""
    free, predict = OpenMeasures.of(job.train, shape), partial(job.estimate, shape)
    first, *others = _least(job, shape)
    found = free.cheapest(predict, room, first)
    if others and room.lacks(found):
        strongest = predict(free.strongest(others[-1]))
        if room.lacks(strongest):
            return strongest
    for base in others:
        if room.lacks(found):
            found = free.cheapest(predict, room, base)
    return found


def _least(job: Workload, shape: JobShape) -> list[MemoryMeasures]:
    """Returns the measures to start from, the fastest first; later ones need less memory while a block runs."""
    chunk = CHUNK_TOKENS if job.chunk_tokens is None else job.chunk_tokens
    found = [MemoryMeasures(chunk_tokens=chunk)]
    if job.train.memory == "manual":
        # `faster.py` enlarges the chunks of other plans, but not of a plan with fixed measures.
        wide = MemoryMeasures(chunk_tokens=_chunk_of(job, shape))
        return found if job.chunk_tokens is not None or wide == found[0] else [wide, *found]
    if shape.unpacking_bytes:
        found.append(replace(found[-1], dequantize_once=False))
    if job.chunk_tokens is None:
        found.append(replace(found[-1], chunk_tokens=_SHORTEST_CHUNK))
    if shape.under_way:
        found.append(replace(found[-1], in_turn=True))
    return found


def _chunk_of(job: Workload, shape: JobShape) -> int:
    """Returns the tokens of a chunk with as many values as CHUNK_TOKENS have in the 14B model."""
    if job.step.batch_size * job.step.tokens <= CHUNK_TOKENS:
        return CHUNK_TOKENS
    tokens = CHUNK_TOKENS * _WIDTH // shape.shape.dim // 1024 * 1024
    return min(max(tokens, CHUNK_TOKENS), _LONGEST_CHUNK)


def strongest_measures(job: Workload, shape: JobShape) -> MemoryMeasures:
    """Returns the measures that need the least device memory, among those that the settings leave open."""
    return OpenMeasures.of(job.train, shape).strongest(_least(job, shape)[-1])


def largest(most: int, fits: Callable[[int], bool]) -> int:
    """Returns the largest number from 1 to `most` that fits, by bisection; 0 if none does."""
    if most < 1 or not fits(1):
        return 0
    few, many = 1, most + 1
    while many - few > 1:
        middle = (few + many) // 2
        few, many = (middle, many) if fits(middle) else (few, middle)
    return few
