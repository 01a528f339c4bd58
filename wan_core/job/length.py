"""Tells how long a run is: epochs and a batch over all GPUs become steps once clips are known; hours end at a save."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ..cache import CacheSet, Order
from ..errors import ConfigError
from ..events import Event, StageEnded, StepDone
from ..metrics import finite, records_of
from ..train import TrainConfig, check_warmup

_NOT_WORK = ("cache", "start")
"""what comes before the worker is at work"""
_PACE_STEPS = 20
"""steps of a session after which its pace is known"""


def with_global_batch(train: TrainConfig, ranks: int) -> TrainConfig:
    """Returns `train` with as many accumulated micro-batches as its global batch asks of `ranks` processes.

    Raises ConfigError for a global batch that cannot be, with the nearest that can.
    """
    if not (asked := train.global_batch_size):
        return train
    one_pass = train.batch_size * ranks
    passes, rest = divmod(asked, one_pass)
    if rest:
        fits = " or ".join(str(count * one_pass) for count in (passes, passes + 1) if count)
        raise ConfigError(
            f"global_batch_size {asked} is no multiple of {one_pass}, the clips of one pass (batch_size "
            f"{train.batch_size} x {ranks} in parallel). Set it to {fits}, or change batch_size."
        )
    return replace(train, gradient_accumulation_steps=passes)


def with_clip_values(train: TrainConfig, clips: CacheSet, ranks: int) -> TrainConfig:
    """Returns `train` with what it leaves to its clips and to the `ranks` processes that train them together.

    Epochs say the steps; of a pair each expert makes that many where both have the same share. Raises what
    `with_global_batch` does, and ConfigError where warm-up lasts as long as these steps.
    """
    train = with_global_batch(train, ranks)
    if train.max_train_epochs:
        order = Order(clips.items, seed=train.seed, batch_size=train.batch_size, bucket_sampling=train.bucket_sampling)
        batches = train.max_train_epochs * order.batches_per_epoch
        steps = -(-batches // (train.gradient_accumulation_steps * ranks))
        train = replace(train, steps=steps * len(train.experts))
        check_warmup(train)
    return train


class TimeLimit:
    """Counts the hours that a run was worked on, over all of its sessions; encoding is not counted."""

    def __init__(self, directory: Path, train: TrainConfig) -> None:
        self._train, self._spent = train, _seconds_spent(directory / "metrics.jsonl") if train.max_train_hours else 0.0
        self._seconds: list[float] = []
        self.ended = False
        """whether the run was saved after its time was over, so that nothing is left to do"""

    @property
    def left(self) -> float | None:
        """Seconds of the run's hours that are left; None where it has no such limit."""
        hours = self._train.max_train_hours
        return max(0.0, 3600 * hours - self._spent) if hours else None

    @property
    def is_over(self) -> bool:
        return self.left == 0

    @property
    def reason(self) -> str:
        """Why such a run ends."""
        return f"its {self._train.max_train_hours:g} h of training are over"

    def told(self, event: Event) -> Event:
        """Counts the time of an event; returns it as it is told, a step with the time that is left."""
        self._spent += _seconds_of(event.name, getattr(event, "stage", ""), getattr(event, "seconds", None))
        return event if self.left is None or not isinstance(event, StepDone) else replace(event, seconds_left=self.left)

    def remark(self, event: StepDone) -> str:
        """Returns what to say of a schedule that the hours cut off, once its pace is known; "" else."""
        if self.left is None or self._train.lr_scheduler == "constant" or len(self._seconds) >= _PACE_STEPS:
            return ""
        self._seconds.append(event.seconds)
        if len(self._seconds) < _PACE_STEPS:
            return ""
        pace = sorted(self._seconds)[_PACE_STEPS // 2]
        last = event.step + int(self.left / pace) if pace > 0 else event.steps
        if last >= event.steps:
            return ""
        return (
            f"At {pace:.3g} s a step, max_train_hours {self._train.max_train_hours:g} ends the run near step {last} of "
            f"{event.steps}, before its {self._train.lr_scheduler} learning rate has fallen. Set steps to about "
            f"{last}, and it falls in that time."
        )


def hours_are_over(directory: Path, train: TrainConfig) -> bool:
    """Returns whether the run in `directory` was worked on for as many hours as it may be."""
    return TimeLimit(directory, train).is_over


def _seconds_spent(metrics: Path) -> float:
    return sum(
        _seconds_of(record["event"], record.get("stage", ""), finite(record.get("seconds")))
        for record in records_of(metrics, (StepDone.name, StageEnded.name))
    )


def _seconds_of(name: str, stage: object, seconds: float | None) -> float:
    counts = name == StepDone.name or (name == StageEnded.name and stage not in _NOT_WORK)
    return seconds or 0.0 if counts else 0.0
