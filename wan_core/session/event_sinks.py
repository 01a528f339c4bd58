"""Sends the events of a session on: into metrics.jsonl, out to whoever listens, and to those who remark on them."""

from __future__ import annotations

import math
from pathlib import Path

from ..events import Emit, Evaluated, Event, Note, StepDone
from ..job.length import TimeLimit
from ..metrics import HealthWatch, JsonlSink, finite, records_of, whole
from .experts import Experts
from .remaining import Remaining
from .spill import SpillWatch


class _Looks:
    """Knows since which step evaluations, finite before, are no longer; of a pair each expert's own."""

    def __init__(self) -> None:
        self.bad_since: dict[str, int] = {}
        self._seen: set[str] = set()

    def add(self, expert: str, step: int, loss: float | None) -> None:
        """Take an evaluation into account. Without a finite one before, it says nothing of what was learnt."""
        if loss is not None and math.isfinite(loss):
            self._seen.add(expert)
            self.bad_since.pop(expert, None)
        elif expert in self._seen:
            self.bad_since.setdefault(expert, step)


class EventSinks:
    """Takes each event of a session. Of several ranks only the leading one writes it down and watches the losses."""

    def __init__(self, directory: Path, out: Emit, limit: TimeLimit, remaining: Remaining, *, leads: bool) -> None:
        """`out` hears every event after it is written; `limit` and `remaining` tell their times in it."""
        self._out, self._limit, self._remaining = out, limit, remaining
        self._sink = JsonlSink(directory / "metrics.jsonl") if leads else None
        self._health = HealthWatch(directory / "metrics.jsonl") if leads else None
        self.experts: Experts | None = None
        """of whom the one at work hears it, from when they are planned"""
        self.spill: SpillWatch | None = None
        """from when the devices are known"""
        self._metrics, self._evaluated = directory / "metrics.jsonl", list[Evaluated]()

    def emit(self, event: Event) -> None:
        """Write down, tell and remark on an event."""
        event = self._remaining.told(self._limit.told(event))
        if self._sink is not None:
            self._sink(event)
        self._out(event)
        if self.experts is not None and (expert := self.experts.at_work) is not None:
            expert.hear(event)
        if isinstance(event, Evaluated):
            self._evaluated.append(event)
        if isinstance(event, StepDone):
            self.warn(self.spill.remark(event) if self.spill is not None else "")
            self.warn(self._limit.remark(event))
        for mark in self._health.hear(event) if self._health is not None else ():
            self.emit(mark)
            self.warn(mark.text)

    def good_until(self, step: int) -> int:
        """Returns the step from which saves are no good: `step`, or one before it whose evaluation was not finite."""
        looks = _Looks()
        for record in records_of(self._metrics, (Evaluated.name,)):  # of earlier sessions too
            if (at := whole(record.get("step"))) is not None:
                looks.add(str(record.get("expert", "")), at, finite(record.get("eval_loss")))
        for event in self._evaluated:
            looks.add(event.expert, event.step, event.eval_loss)
        return min([step, *looks.bad_since.values()])

    def warn(self, remark: str) -> None:
        """Emit a remark as a warning; "" is none."""
        if remark:
            self.emit(Note(text=remark, level="warning"))

    def close(self) -> None:
        """Write down what is still to be written."""
        if self._sink is not None:
            self._sink.close()
