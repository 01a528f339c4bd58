"""The runs that train in this ComfyUI, by run id, and their buttons.

The thread that executes TrainLoRA writes them; the routes read them and press buttons. A press before the worker has
started is kept, and sent later.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

BUTTONS = {"stop": "Stop and keep was pressed", "save": "", "sample": "", "profile": ""}


class Listener(Protocol):
    """The part of a worker that a button needs."""

    def send(self, command: str, **values: str) -> None: ...


@dataclass
class LiveRun:
    run: str
    """run id: the name of its folder"""
    node: str
    """id of the TrainLoRA node, as websocket messages spell it"""
    prompt_id: str
    variant: str = ""
    can_preview: bool = True
    """False without a VAE, or with previews off: Preview now is then refused"""
    stop_pressed: bool = False
    """Stop and keep: the node returns normally, with the newest saved step"""
    _worker: Listener | None = None
    _waiting: list[str] = field(default_factory=list[str])
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def press(self, button: str) -> None:
        """Send stop, save, sample or profile to the worker, or keep it once until there is a worker."""
        with self._lock:
            if button == "stop":
                self.stop_pressed = True
            if self._worker is not None:  # sent under the lock, so that presses arrive in order
                _send(self._worker, button)
            elif button not in self._waiting:
                self._waiting.append(button)

    @contextlib.contextmanager
    def listening(self, worker: Listener) -> Iterator[None]:
        """Inside, kept and new presses are sent to `worker`."""
        with self._lock:
            self._worker, waiting = worker, self._waiting
            self._waiting = []
            for button in waiting:
                _send(worker, button)
        try:
            yield
        finally:
            with self._lock:
                self._worker = None


class LiveRuns:
    """The live runs by id. One entry per run: the run's file lock refuses a second worker."""

    def __init__(self) -> None:
        self._runs: dict[str, LiveRun] = {}
        self._used: list[str] = []
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def entered(self, run: LiveRun) -> Iterator[LiveRun]:
        with self._lock:
            self._runs[run.run] = run
        try:
            yield run
        finally:
            with self._lock:
                self._runs.pop(run.run, None)

    @contextlib.contextmanager
    def used(self, run_id: str) -> Iterator[None]:
        """Inside, a worker reads or writes the run, so deleting it is refused."""
        with self._lock:
            self._used.append(run_id)
        try:
            yield
        finally:
            with self._lock:
                self._used.remove(run_id)

    def is_used(self, run_id: str) -> bool:
        """Returns whether the run trains here or has clips rendered."""
        with self._lock:
            return run_id in self._runs or run_id in self._used

    def get(self, run_id: str) -> LiveRun | None:
        with self._lock:
            return self._runs.get(run_id)


LIVE = LiveRuns()
"""the live runs of this process"""


def _send(worker: Listener, button: str) -> None:
    reason = BUTTONS[button]
    worker.send(button, **({"reason": reason} if reason else {}))
