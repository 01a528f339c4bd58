"""The event of a finished step: its numbers and time, and the memory and work of all ranks."""

from __future__ import annotations

import time

from torch import Tensor

from ..events import Emit, StepDone
from ..model import WanTransformer
from .config import TrainConfig
from .flops import FlopCount, Work
from .group import Group
from .meters import DeviceMeters, added_up
from .objective import NoisedBatch, TrainedLoss


class StepReport:
    """Collects the work of a step's micro-batches and emits StepDone."""

    def __init__(
        self,
        model: WanTransformer,
        config: TrainConfig,
        meters: DeviceMeters,
        group: Group,
        emit: Emit,
        *,
        batches_per_epoch: int,
    ) -> None:
        """`batches_per_epoch`: of all ranks."""
        self._epochs_a_step = config.gradient_accumulation_steps * group.batches / batches_per_epoch
        self._config, self._meters, self._group, self._emit = config, meters, group, emit
        self._flops, self._work = FlopCount(model), Work()
        self.prior_errors = list[Tensor]()
        """unweighted error () of each micro-batch with prior preservation clips"""
        self.read_errors = list[float]()
        """the same as numbers, which the trainer reads together with the loss"""
        self._prior_clips = list[int]()

    def begin(self) -> None:
        """Reset for a new step, or a retry."""
        self._work = Work()
        self.prior_errors.clear()
        self._prior_clips.clear()

    def add_loss(self, loss: TrainedLoss) -> None:
        """Note the prior loss of one micro-batch of this rank."""
        if loss.prior is not None:
            self.prior_errors.append(loss.prior)
            self._prior_clips.append(loss.prior_clips)

    def add_work(self, batch: NoisedBatch) -> None:
        """Count the work of one micro-batch of this rank."""
        self._work += self._flops.work_of(
            batch.latent.shape,
            time_rows=batch.time_rows,
            image_rows=batch.image_rows,
            text_rows=batch.text_rows,
            prior_clips=len(batch.prior_rows),
            routes=self._config.routes,
        )

    def finish(self, step: int, *, loss: float, lr: float, grad_norm: float, timestep: float, began: float) -> None:
        """Emit the step, which started at `began` (monotonic clock); every rank calls it."""
        seconds = time.monotonic() - began
        prior = [(error * clips, clips) for error, clips in zip(self.read_errors, self._prior_clips, strict=True)]
        ranks = self._group.gather((self._meters.read(), self._work, prior))
        work = sum((done for _, done, _ in ranks[:: self._group.parts]), Work())
        memory = added_up(reading for reading, _, _ in ranks)
        errors = [part for _, _, parts in ranks[:: self._group.parts] for part in parts]
        self._emit(
            StepDone(
                step=step,
                steps=self._config.steps,
                loss=loss,
                lr=lr,
                grad_norm=grad_norm,
                seconds=seconds,
                expert=self._config.expert,
                timestep_mean=timestep,
                memory=memory,
                tokens=work.tokens,
                clips=work.clips,
                epoch=round(step * self._epochs_a_step, 4),
                prior_loss=sum(error for error, _ in errors) / sum(clips for _, clips in errors) if errors else None,
                tflops=work.flops / seconds / 1e12 if seconds > 0 else None,
            )
        )
