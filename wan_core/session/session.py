"""The session of a worker: values shared by all parts of its work on a run."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..control import Control
from ..errors import Stopped
from ..events import Emit, Note, Stage
from ..files import Roots
from ..job.config import RunConfig
from ..job.length import TimeLimit
from ..train import Group


@dataclass(frozen=True, kw_only=True)
class Session:
    """One worker on one run. Every rank has its own; only the leader saves, evaluates and renders."""

    directory: Path
    config: RunConfig
    roots: Roots
    emit: Emit
    control: Control
    group: Group = field(default_factory=Group)
    embed_workflow: bool = False
    """whether LoRA files contain the run's workflow.json"""
    timed: Callable[[str, int], AbstractContextManager[None]] = lambda _stage, _step: nullcontext()
    """`timed(stage, step)`: inside, time and memory count for `stage` after `step` steps"""

    @property
    def leads(self) -> bool:
        return self.group.leads

    def note(self, text: str) -> None:
        """Emit a note; "" emits nothing."""
        if text:
            self.emit(Note(text=text))

    def warn(self, text: str) -> None:
        """Emit a warning; "" emits nothing."""
        if text:
            self.emit(Note(text=text, level="warning"))

    def on_tensor(self, done: int, total: int) -> None:
        """Emit the progress of loading. Raises Stopped on a stop request, except with several ranks: they stop together
        before the next step."""
        if done % 50 == 0 or done == total:
            self.emit(Stage(stage="load", done=done, total=total))
        if (reason := self.control.stop_reason()) and self.group.world == 1:
            raise Stopped(reason)


class TimedControl(Control):
    """A control that also stops a run at one of its limits, once it is saved."""

    def __init__(self, inner: Control, limit: TimeLimit) -> None:
        self._inner, self._limit = inner, limit

    def stop_reason(self) -> str:
        return self._inner.stop_reason() or (self._limit.reason if self._limit.ended else "")

    def take(self, command: str) -> bool:
        return self._inner.take(command)

    def wait_decoded(self, sample_id: str, timeout_s: float) -> dict[str, Any] | None:
        return self._inner.wait_decoded(sample_id, timeout_s)
