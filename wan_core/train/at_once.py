"""Pipelined gradient accumulation on a model split over cards: the cards work on different micro-batches at once.

Draws, noise and losses equal those of plain accumulation. The loss is computed on the last card, so that cards wait
only for activations and gradients of their neighbours.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..lora import without_adapters
from ..model import WanTransformer
from ..model.walk import StayHere, Walk
from ..parallel.pipeline import Pipeline, Stage, stages_of
from ..parallel.schedule import Schedule, forward_first, pipelined
from ..placement import DeviceCarrier
from ..placement.offload import BlockOffload
from .draws import Draw
from .meters import StepReport
from .objective import NoisedBatch, Objective
from .recovery import LossScale


class CardsAtOnce:
    """Runs the micro-batches of a step through the pipeline."""

    def __init__(
        self,
        model: WanTransformer,
        objective: Objective,
        report: StepReport,
        scale: LossScale,
        *,
        check: Callable[[], None],
    ) -> None:
        """`check`: raises Stopped on a stop request; called from the threads of the cards."""
        self._model, self._objective, self._report, self._scale = model, objective, report, scale
        self._check, carrier = check, model.carrier
        self._stages = stages_of(carrier.placement) if isinstance(carrier, DeviceCarrier) else tuple[Stage, ...]()
        self._homes = tuple(stage.card for stage in self._stages)
        self.pipeline = Pipeline(model, self._stages)

    def schedule(self, micro_batches: int) -> Schedule | None:
        """Returns the pipeline schedule of a step; None if the cards work one after the other: for one micro-batch, one
        card, or to save memory."""
        offload = self._model.offload
        in_turn = isinstance(offload, BlockOffload) and offload.measures.in_turn
        if micro_batches < 2 or max(self._homes, default=0) == 0 or in_turn:
            return None
        return pipelined(self._homes, micro_batches)

    def rehearsed(self, micro_batches: int) -> int:
        """Returns the number of micro-batches whose memory peak equals that of `micro_batches`."""
        return min(micro_batches, 2 * len(self._homes))

    def accumulated(self, schedule: Schedule, draws: Sequence[Draw], seed: Callable[[int], None], *, of: int) -> Tensor:
        """Adds the gradients of a step to `.grad`; returns the loss, a scalar: the sum of the draws' divided by `of`.

        `seed(micro)`: seeds torch's generators for a micro-batch.
        """
        parts = [[Tensor()] * len(draw.target.passes) for draw in draws]
        of_step = (self._model, self._objective, self._check, seed, draws, parts)
        for adapted in (False, True):
            # Disabling adapters affects all blocks, so these passes come before all others.
            places = [
                (micro, number)
                for micro, draw in enumerate(draws)
                for number, one in enumerate(draw.target.passes)
                if one.adapted == adapted
            ]
            if places:
                passes = _TargetPasses(*of_step, places)
                lines = forward_first(self._homes, len(places)).cards
                forward = Schedule(tuple(tuple(work for work in line if work.forward) for line in lines))
                base = contextlib.nullcontext() if adapted else without_adapters(self._model)
                with torch.no_grad(), base:
                    self.pipeline.run(forward, passes)
        step = _TrainedPasses(*of_step, self._report, self._scale, self._stages[-1].device, of)
        self.pipeline.run(schedule, step)
        return step.loss


class _Passes:
    """Base class of the pipeline's `MicroBatches`."""

    def __init__(
        self,
        model: WanTransformer,
        objective: Objective,
        check: Callable[[], None],
        seed: Callable[[int], None],
        draws: Sequence[Draw],
        parts: list[list[Tensor]],
    ) -> None:
        """`parts`: the predictions of the target passes of each draw, float32 on the last card."""
        self._model, self._check, self._seed, self._parts = model, check, seed, parts
        self.objective, self.draws = objective, draws

    def noised(self, micro: int) -> NoisedBatch:
        draw, first = self.draws[micro], self._model.patch_embedding.weight.device
        return draw.noised(first)

    def walk(self, batch: NoisedBatch) -> Walk:
        given = (batch.noised, batch.timestep, batch.text, batch.conditioning, batch.passages)
        return self._model.walk(*given, carrier=StayHere())

    def check(self) -> None:
        self._check()

    def seed(self, micro: int) -> None:
        self._seed(micro)


class _TargetPasses(_Passes):
    """Target passes of several micro-batches; stores their predictions in `parts`."""

    def __init__(self, *of_step: Any) -> None:
        *of_all, self._places = of_step
        super().__init__(*of_all)

    def begin(self, micro: int) -> Walk:
        of_step, number = self._places[micro]
        batch = self.noised(of_step)
        return self.walk(batch.of_pass(batch.target.passes[number]))

    def end(self, micro: int, predicted: Tensor) -> None:
        of_step, number = self._places[micro]
        self._parts[of_step][number] = predicted.float()


class _TrainedPasses(_Passes):
    """The training passes: forward pass and loss; the pipeline runs the backward pass."""

    def __init__(self, *of_step: Any) -> None:
        *of_all, self._report, self._scale, last, self._of = of_step
        super().__init__(*of_all)
        self.loss = torch.zeros((), device=last)

    def begin(self, micro: int) -> Walk:
        batch = self.noised(micro)
        self._report.add_work(batch)
        return self.walk(batch)

    def end(self, micro: int, predicted: Tensor) -> Tensor:
        draw = self.draws[micro]
        # The batch is noised again from host memory, because a copy from the first card would make that card wait.
        only = replace(draw.batch, conditioning=None, texts=draw.batch.texts[:, :0])
        target = draw.target.each(lambda text: text[:, :0])
        batch = replace(draw, batch=only, passages=(), target=target).noised(self.loss.device)
        found = self.objective.of_prediction(batch, predicted, self._parts[micro])
        self._parts[micro] = []
        self._report.add_loss(found)
        self.loss += found.loss.detach() / self._of
        return self._scale.scale(found.loss / self._of)
