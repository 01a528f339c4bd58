"""The time of a step over the cards of a split model, by the event model of `wan_core/parallel/timeline.py`.

The cost of a stage is the sum over its blocks, from traces. Embedding, head and loss are the cost of a model minus its
blocks; one half belongs to the first stage, and one half to the last. VACE's second stream belongs to the first stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ..parallel.pipeline import Stage, stages_of
from ..parallel.schedule import in_turn, pipelined
from ..parallel.timeline import STAGED_BYTES_PER_S, StageCost, Timeline, replay
from ..placement import JobShape, MemoryEstimate, Recomputing, StepShape, Traffic, lockable_bytes, step_traffic
from ..placement.short_model import AsBlock
from .cards import Card, CardCost

COPIES = 25e9
"""bytes/s between pinned host memory and a card in a PCIe 4 slot of 16 lanes, each way"""
PAGEABLE_COPIES = 8e9
"""bytes/s between unpinned host memory and a card; the card waits for such a copy"""


@dataclass(frozen=True)
class SplitStep:
    """The cost of each stage of a step, and the card of each stage."""

    costs: tuple[StageCost, ...]
    homes: tuple[int, ...]
    micro_batches: int

    def timeline(self, *, at_once: bool = True) -> Timeline:
        """Returns the timeline of each card, with links without peer access."""
        schedule = (pipelined if at_once else in_turn)(self.homes, self.micro_batches)
        return replay(schedule, self.costs, bytes_per_s=STAGED_BYTES_PER_S)

    @property
    def gain(self) -> float:
        """Speedup: the time of the step with one card after the other, divided by its time with all cards at once."""
        return self.timeline(at_once=False).seconds / self.timeline().seconds


def split_step(
    job: JobShape,
    step: StepShape,
    estimate: MemoryEstimate,
    cards: Sequence[Card],
    micro_batches: int,
) -> SplitStep:
    """Returns the costs of a step. `cards`: of each device, in the order of the placement."""
    stages, counts, first = stages_of(job.placement), _Counts(job, step, estimate), 0
    costs: list[StageCost] = []
    for stage in stages:
        costs.append(_cost(stage, range(first, stage.stop), counts, cards[stage.card]))
        first = stage.stop
    return SplitStep(tuple(costs), tuple(stage.card for stage in stages), micro_batches)


class Passes(NamedTuple):
    """The work of a part of the model on one micro-batch."""

    forward: CardCost
    backward: CardCost

    def minus(self, other: Passes, count: float = 1) -> Passes:
        return Passes(*(mine.plus(theirs.times(-count)) for mine, theirs in zip(self, other, strict=True)))

    def of_some(self, share: float) -> Passes:
        """Returns the work for a share of the tokens."""
        return Passes(*(one.of_some(share) for one in self))


class _Counts:
    """The work of each block of a model, and of its ends (embedding, head and loss)."""

    def __init__(self, job: JobShape, step: StepShape, estimate: MemoryEstimate) -> None:
        self.job, self.step, self.estimate = job, step, estimate
        layers, vace, plain = job.shape.num_layers, job.shape.vace_layers, Recomputing(blocks=False)
        checked = replace(job.recomputing, unchecked=0)
        self._checked, self._unchecked = (
            {like: self._of(layers + 1, how, like).minus(self._of(layers, how, like)) for like in {*job.layouts}}
            for how in (checked, plain)
        )
        self.ends = self._of(layers, checked).minus(self._checked[0], layers)
        self.second = self._of(layers, checked).minus(self._of(layers, checked, second=len(vace) - 1)) if vace else None
        if self.second is not None:
            self.ends = self.ends.minus(self.second, len(vace))
        self.shares = [tokens / step.tokens for tokens in job.tokens(step)]
        self._first_unchecked = layers - (job.recomputing.unchecked if job.recomputing.blocks else layers)

    def _of(self, layers: int, recomputing: Recomputing, like: int = 0, *, second: int | None = None) -> Passes:
        vace = self.job.shape.vace_layers if second is None else self.job.shape.vace_layers[:second]
        shape = replace(self.job.shape, num_layers=layers, vace_layers=vace)
        return passes_of(
            replace(self.job, shape=shape, recomputing=recomputing),
            self.step,
            self.estimate,
            self.job.as_block(self.job.as_loaded or self.job.adapt, like),
        )

    def block(self, layer: int) -> Passes:
        kinds = self._unchecked if layer >= self._first_unchecked else self._checked
        found = kinds[self.job.layouts[layer]].of_some(self.shares[layer])
        return found if self.job.walks(layer) else found._replace(backward=found.backward.times(0))


def passes_of(job: JobShape, step: StepShape, estimate: MemoryEstimate, adapt: AsBlock) -> Passes:
    """Returns the work of a micro-batch on a model of `job.shape` whose blocks are all adapted by `adapt`."""
    found = step_traffic(
        job.shape,
        job.numerics,
        step,
        adapt,
        recomputing=job.recomputing,
        chunk_tokens=estimate.measures.chunk_tokens,
        dequantize_once=estimate.measures.dequantize_once,
    )
    return Passes(*map(_work_of, (found.forward, found.backward)))


def _work_of(part: Traffic) -> CardCost:
    products, attention = part.flop["products"], part.flop["attention"]
    return CardCost(products + attention, part.bytes_beside, part.kernels.total(), part.moved.total(), attention)


def _cost(stage: Stage, layers: range, counts: _Counts, card: Card) -> StageCost:
    job, estimate, pageable = counts.job, counts.estimate, pageable_share(counts.estimate)
    parts = [counts.block(layer) for layer in layers]
    if stage.number == 0 and counts.second is not None:
        parts += [counts.second.of_some(counts.shares[layer]) for layer in job.shape.vace_layers]
    parts += [Passes(*(one.times(0.5) for one in counts.ends))] * (
        (stage.number == 0) + (layers.stop == job.shape.num_layers)
    )
    forward = sum(work.forward.seconds(card) for work in parts)
    backward = sum(work.backward.seconds(card) for work in parts)
    of_device = len(layers) / job.placement.block_devices.count(stage.device)
    streamed = of_device * estimate.streamed.get(str(stage.device), 0)
    inputs = len(layers) / job.shape.num_layers * estimate.inputs
    weights, kept = (size * (1 - pageable) / COPIES for size in (streamed, inputs))
    blocked = pageable * (streamed + inputs) / PAGEABLE_COPIES
    return StageCost(
        forward_s=max(forward, weights, kept) + blocked,
        backward_s=max(backward, weights + kept) + blocked,
        sent_bytes=counts.step.batch_size * counts.step.tokens * job.shape.dim * job.numerics.residual.itemsize,
    )


def pageable_share(estimate: MemoryEstimate) -> float:
    """Returns the share of offloaded bytes beyond the system's limit of pinned memory."""
    limit = lockable_bytes()
    return 0.0 if limit is None or not estimate.pinned else max(0.0, 1 - limit / estimate.pinned)


def seconds_together(works: Sequence[CardCost], cards: Sequence[Card]) -> float:
    """Returns the seconds of a pass in which each card computes a part of the tokens, with its work in `works`.

    In every layer, all cards wait for the slowest one before and after attention.
    """
    own = [work.seconds(card) for work, card in zip(works, cards, strict=True)]
    if len(own) == 1:
        return own[0]
    attention = [CardCost(work.attention, 0, 0, 0, work.attention) for work in works]
    attended = [work.seconds(card) for work, card in zip(attention, cards, strict=True)]
    return max(attended) + max(one - part for one, part in zip(own, attended, strict=True))
