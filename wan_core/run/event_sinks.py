"""Sends the events of a session on: into metrics.jsonl, out to whoever listens, and to those who remark on them."""

from __future__ import annotations

from pathlib import Path

from ..events import Emit, Event, Note, StepDone
from ..metrics import HealthWatch, JsonlSink
from .experts import Experts
from .length import TimeLimit
from .remaining import Remaining
from .spill import SpillWatch

__all__ = ["EventSinks"]


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

    def emit(self, event: Event) -> None:
        """Write down, tell and remark on an event."""
        event = self._remaining.told(self._limit.told(event))
        if self._sink is not None:
            self._sink(event)
        self._out(event)
        if self.experts is not None and (expert := self.experts.at_work) is not None:
            expert.hear(event)
        if isinstance(event, StepDone):
            self.warn(self.spill.remark(event) if self.spill is not None else "")
            self.warn(self._limit.remark(event))
        for mark in self._health.hear(event) if self._health is not None else ():
            self.emit(mark)
            self.warn(mark.text)

    def warn(self, remark: str) -> None:
        """Emit a remark as a warning; "" is none."""
        if remark:
            self.emit(Note(text=remark, level="warning"))

    def close(self) -> None:
        """Write down what is still to be written."""
        if self._sink is not None:
            self._sink.close()
