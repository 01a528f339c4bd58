"""Sinks of a session's events: metrics.jsonl, the caller, and the watches for health, memory spill and time."""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from ..events import Emit, Evaluated, Event, Note, Stage, StageEnded, StepDone
from ..job.length import TimeLimit
from ..metrics import HealthWatch, JsonlSink, finite, records_of, whole
from ..train import TrainConfig
from ..train.meters import MemoryReading
from .expert import Expert
from .spill import SpillWatch

_LAST = 3
"""The mean time of this many newest stages of a kind predicts the time of the next one."""


class EventSinks:
    """Takes each event of a session; only the leader writes it and watches the losses."""

    def __init__(self, directory: Path, out: Emit, limit: TimeLimit, train: TrainConfig, *, leads: bool) -> None:
        """`out` is called with every event after it is written."""
        self._out, self._limit, self._remaining = out, limit, Remaining(train)
        self._sink = JsonlSink(directory / "metrics.jsonl") if leads else None
        self._health = HealthWatch(directory / "metrics.jsonl") if leads else None
        self.on_device: Callable[[], Expert | None] = lambda: None
        """returns the trained model on the devices; set after the memory of the models is planned"""
        self.spill: SpillWatch | None = None
        """set once the devices are known"""
        self._metrics, self._evaluated = directory / "metrics.jsonl", list[Evaluated]()

    def emit(self, event: Event) -> None:
        """Write and forward an event, then emit the warnings that it causes."""
        event = self._remaining.with_predicted(self._limit.with_time_left(event))
        if self._sink is not None:
            self._sink(event)
        self._out(event)
        if (expert := self.on_device()) is not None:
            expert.hear(event)
        if isinstance(event, Evaluated):
            self._evaluated.append(event)
        if isinstance(event, StepDone):
            self._warn(self.spill.remark(event) if self.spill is not None else "")
            self._warn(self._limit.remark(event))
        for mark in self._health.hear(event) if self._health is not None else ():
            self.emit(mark)
            self._warn(mark.text)

    def _warn(self, remark: str) -> None:
        if remark:
            self.emit(Note(text=remark, level="warning"))

    @contextlib.contextmanager
    def timed(self, stage: str, step: int) -> Iterator[None]:
        """Inside, time and memory count for `stage` after `step` steps, also when an error ends it."""
        began = time.monotonic()
        self._end_phase()  # ends the phase of training, so that its peak is not counted for this stage
        self.emit(Stage(stage=stage))
        try:
            yield
        finally:
            seconds = time.monotonic() - began
            self.emit(StageEnded(stage=stage, seconds=seconds, step=step, memory=self._end_phase(stage)))

    def _end_phase(self, stage: str = "") -> MemoryReading:
        return expert.end_phase(stage) if (expert := self.on_device()) is not None else {}

    def good_until(self, step: int) -> int:
        """Returns the step from which saves are suspect: `step`, or an earlier one whose evaluation is NaN or inf."""
        bad_since: dict[str, int] = {}
        # Per expert. An evaluation that was never finite says nothing about the training.
        finite_once: set[str] = set()
        known = [
            (str(record.get("expert", "")), whole(record.get("step")), finite(record.get("eval_loss")))
            for record in records_of(self._metrics, (Evaluated.name,))  # of earlier sessions too
        ]
        for expert, at, loss in [*known, *((one.expert, one.step, one.eval_loss) for one in self._evaluated)]:
            if at is not None and loss is not None and math.isfinite(loss):
                finite_once.add(expert)
                bad_since.pop(expert, None)
            elif at is not None and expert in finite_once:
                bad_since.setdefault(expert, at)
        return min([step, *bad_since.values()])

    def close(self) -> None:
        """Flush and close metrics.jsonl."""
        if self._sink is not None:
            self._sink.close()


class Remaining:
    """Predicts the time of later saves, evaluations and previews from the latest ones."""

    def __init__(self, train: TrainConfig) -> None:
        self._train = train
        self._seconds: dict[str, list[float]] = {"save": [], "evaluate": [], "sample": []}

    def with_predicted(self, event: Event) -> Event:
        """Returns `event`; StepDone with the predicted seconds of all later saves, evaluations and previews."""
        if isinstance(event, StageEnded) and event.stage in self._seconds:
            self._seconds[event.stage].append(event.seconds)
        if not isinstance(event, StepDone):
            return event
        counts, left = self.to_come(event.step), 0.0
        for kind, took in self._seconds.items():
            left += counts[kind] * statistics.fmean(took[-_LAST:]) if took else 0.0
        return replace(event, beside_left=left)

    def to_come(self, step: int) -> dict[str, int]:
        """Returns the number of saves, evaluations and previews that are due after `step` and after later steps."""
        train = self._train
        saves, previews = train.save_every_n_steps, train.preview_every_n_steps
        measures = train.eval_every_n_steps or saves
        return {
            "save": _due(step, train.steps, saves),
            "evaluate": _due(step, train.steps, saves, measures),
            "sample": _due(step, train.steps, previews) if previews else 0,
        }


def _due(step: int, steps: int, *every: int) -> int:
    """Returns how many steps from `step` to `steps` are a multiple of a number in `every`, or the last step.

    `every`: one or two numbers.
    """

    def multiples(of: int) -> int:
        return max(0, (steps - 1) // of - (step - 1) // of)

    first, last = every[0], every[-1]
    both = 0 if last == first else multiples(last) - multiples(math.lcm(first, last))
    return multiples(first) + both + 1
