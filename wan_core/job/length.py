"""Length of a run: steps from the clips, epochs and global batch; the limit in hours; early stopping."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from ..cache import CacheSet, Order
from ..errors import ConfigError
from ..events import Event, StageEnded, StepDone, Suggested
from ..metrics import finite, records_of, whole
from ..train import Manifest, TrainConfig, check_warmup, with_auto_rate
from .config import RunConfig

_NOT_WORK = ("cache", "start")
"""stages whose time is not training"""
_PACE_STEPS = 20
"""number of steps whose median time is the pace of a session"""


def with_global_batch(train: TrainConfig, ranks: int) -> TrainConfig:
    """Returns `train` with the gradient accumulation that its global batch needs with `ranks` processes.

    Raises ConfigError for an indivisible global batch, with the nearest divisible ones.
    """
    if not (requested := train.global_batch_size):
        return train
    one_pass = train.batch_size * ranks
    passes, remainder = divmod(requested, one_pass)
    if remainder:
        fits = " or ".join(str(count * one_pass) for count in (passes, passes + 1) if count)
        raise ConfigError(
            f"global_batch_size {requested} is not a multiple of {one_pass}, the clips of one pass (batch_size "
            f"{train.batch_size} x {ranks} in parallel). Set it to {fits}, or change batch_size."
        )
    return replace(train, gradient_accumulation_steps=passes)


def with_clip_values(train: TrainConfig, clips: CacheSet, ranks: int) -> TrainConfig:
    """Returns `train` with gradient accumulation from its global batch, and steps from epochs.

    A learning rate of 0 becomes the optimizer's default. Of a pair, each expert trains these epochs. Raises what
    `with_global_batch` does, and ConfigError if warm-up lasts as long as these steps.
    """
    train = with_global_batch(with_auto_rate(train), ranks)
    if not (train.max_train_epochs or train.save_every_n_epochs):
        return train
    order = Order(clips.items, seed=train.seed, batch_size=train.batch_size, bucket_sampling=train.bucket_sampling)

    def steps_of(epochs: int) -> int:
        return -(-epochs * order.batches_per_epoch // (train.gradient_accumulation_steps * ranks))

    if train.save_every_n_epochs:
        train = replace(train, save_every_n_steps=steps_of(train.save_every_n_epochs))
    if train.max_train_epochs:
        train = replace(train, steps=steps_of(train.max_train_epochs) * len(train.experts))
        check_warmup(train)
    return train


def batches_a_step(known: RunConfig, saved: Manifest | None) -> int:
    """Returns the batches of a step of the run `known` over all processes; `saved`: its newest saved step."""
    progress = saved.counters() if saved is not None and saved.job_id == known.job_id else {}
    if noted := int(progress.get("batches", 0)):
        return noted
    copies = known.model.placement.identity()["copies"]  # "all" does not say how many GPUs the run had
    ranks = copies if isinstance(copies, int) else int(progress.get("ranks", 1))
    return ranks * known.train.gradient_accumulation_steps


def on_other_ranks(wanted: RunConfig, known: RunConfig, batches: int) -> RunConfig | None:
    """Returns `wanted` as a continuation of `known` on another number of processes; None if it is another job.

    `batches`: number of batches in a step of `known`. Random draws are numbered over all processes, so with equally
    many batches per step, each step has the same clips, noise and dropout.
    """
    if wanted.model.placement.batches * wanted.train.gradient_accumulation_steps != batches:
        return None
    as_known = replace(
        wanted,
        model=replace(wanted.model, placement=known.model.placement),
        train=replace(wanted.train, gradient_accumulation_steps=known.train.gradient_accumulation_steps),
        begun_as="",
    )
    if as_known.job_id != replace(known, begun_as="").job_id:
        return None
    own = replace(wanted, begun_as="")
    return own if own.job_id == known.job_id else replace(wanted, begun_as=known.job_id)


def job_among(jobs: Collection[RunConfig], known: RunConfig, saved: Manifest | None) -> RunConfig | None:
    """Returns the one of `jobs` that the run `known` trains, also on another number of processes; None without one."""
    others = (on_other_ranks(job, known, batches_a_step(known, saved)) for job in jobs)
    return next((job for job in jobs if job.job_id == known.job_id), None) or next(filter(None, others), None)


def shared_out(changed: RunConfig, known: RunConfig, batches: int) -> RunConfig:
    """Returns `changed` with the gradient accumulation that keeps the `batches` of a step of `known`.

    An accumulation that was set explicitly is kept. Raises ConfigError if the batches cannot be divided evenly.
    """
    placement, accumulation = changed.model.placement, known.train.gradient_accumulation_steps
    ranks, parts = placement.ranks, placement.parts
    passes, remainder = divmod(batches, placement.batches)
    if remainder:
        fits = [str(count * parts) for count in range(1, batches + 1) if batches % count == 0]
        raise ConfigError(
            f"A step of {known.run_name} is {batches} batches, which {ranks} processes cannot share evenly. Start "
            f"{' or '.join(fits)} of them (--set model.placement.copies=N), or make a new run: new NAME --like RUN; "
            "with start_from_lora it begins with the LoRA of that step."
        )
    if changed.train.gradient_accumulation_steps not in (accumulation, passes):
        return changed
    train = replace(changed.train, gradient_accumulation_steps=passes)
    # "all" may mean another number of GPUs at the next resume.
    if placement.mode == "copy per GPU" and passes != accumulation:
        placement = replace(placement, copies=ranks)
    return replace(changed, model=replace(changed.model, placement=placement), train=train)


class TimeLimit:
    """Ends a run before its last step: after its hours of training, without encoding, or by early stopping.

    Both count over all sessions of the run.
    """

    def __init__(self, directory: Path, train: TrainConfig) -> None:
        self._train, self._spent = train, 0.0
        if train.max_train_hours:
            records = records_of(directory / "metrics.jsonl", (StepDone.name, StageEnded.name))
            seconds = ((one["event"], one.get("stage", ""), finite(one.get("seconds"))) for one in records)
            self._spent = sum(_seconds_of(*one) for one in seconds)
        self._overfits_from: int | None = None
        if train.early_stopping:
            for one in records_of(directory / "metrics.jsonl", (Suggested.name,)):
                self._overfits_from = whole(one.get("overfits_from"))
        self._seconds: list[float] = []
        self.ended = False
        """whether the run was saved after one of the limits"""

    @property
    def left(self) -> float | None:
        """Seconds left; None without a limit."""
        hours = self._train.max_train_hours
        return max(0.0, 3600 * hours - self._spent) if hours else None

    @property
    def is_over(self) -> bool:
        return self.left == 0 or self._overfits_from is not None

    @property
    def reason(self) -> str:
        """Why the run ends, after one of its limits."""
        if self._overfits_from is not None:
            return f"early_stopping: its held-out loss has risen since step {self._overfits_from}"
        return f"its {self._train.max_train_hours:g} h of training (max_train_hours) are over"

    def with_time_left(self, event: Event) -> Event:
        """Counts the time of `event` and returns it; StepDone with the seconds that are left."""
        if self._train.early_stopping and isinstance(event, Suggested):
            self._overfits_from = event.overfits_from
        self._spent += _seconds_of(event.name, getattr(event, "stage", ""), getattr(event, "seconds", None))
        return event if self.left is None or not isinstance(event, StepDone) else replace(event, seconds_left=self.left)

    def remark(self, event: StepDone) -> str:
        """Returns a remark if, at the known pace, max_train_hours ends before the learning rate schedule; else ""."""
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


def _seconds_of(name: str, stage: object, seconds: float | None) -> float:
    counts = name == StepDone.name or (name == StageEnded.name and stage not in _NOT_WORK)
    return seconds or 0.0 if counts else 0.0
