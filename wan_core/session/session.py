"""The session of a worker: what every part of its work on a run shares."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from ..control import Control
from ..errors import Stopped
from ..events import Emit, Note, Stage
from ..files import Roots
from ..job.config import RunConfig
from ..train import Group, TargetFunction, true_velocity


@dataclass(frozen=True, kw_only=True)
class Session:
    """One worker on one run. Of several ranks each has its own; only the leading one saves, evaluates and renders."""

    directory: Path
    config: RunConfig
    roots: Roots
    emit: Emit
    control: Control
    group: Group = field(default_factory=Group)
    target: TargetFunction = true_velocity
    embed_workflow: bool = False
    """whether the LoRAs carry the run's workflow.json"""
    timed: Callable[[str, int], AbstractContextManager[None]] = lambda _stage, _step: nullcontext()
    """`timed(stage, step)`: time and memory inside count as those of `stage`, after `step` steps"""

    @property
    def leads(self) -> bool:
        return self.group.leads

    def note(self, text: str) -> None:
        """Emit a note; "" is none."""
        if text:
            self.emit(Note(text=text))

    def warn(self, text: str) -> None:
        """Emit a warning; "" is none."""
        if text:
            self.emit(Note(text=text, level="warning"))

    def on_tensor(self, done: int, total: int) -> None:
        """Report the progress of loading. Raises Stopped when a stop is requested;
        several ranks stop together later."""
        if done % 50 == 0 or done == total:
            self.emit(Stage(stage="load", done=done, total=total))
        if (reason := self.control.stop_reason()) and self.group.world == 1:
            raise Stopped(reason)
