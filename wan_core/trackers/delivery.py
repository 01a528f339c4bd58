"""Events on their way to somebody else: in a thread of their own, so that no step waits and no failure ends a run."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol

from ..events import Event, StepDone
from ..export.secrets import without_secrets
from ..files import DISK_FULL
from ..run import disk_sentence
from ..words import logger, shortened

__all__ = ["Delivery", "Destination"]

_log = logger(__name__)
_WAITING = 4096
"""from so many events on that wait, steps are left out; a saved step and the end of a run never are"""
_RETRY_S = 60.0
"""between two tries to begin"""


class Destination(Protocol):
    """Somebody who is told of a run. May raise anything, and may take its time."""

    title: str
    """as a sentence names it: "The webhook" """
    patience_s: float
    """how long the end of a run waits for it"""

    def begin(self) -> None:
        """Called once, before the first event."""
        ...

    def take(self, event: Event) -> None:
        """Called for each event, in order."""
        ...

    def end(self) -> None:
        """Called once, after the last event; also where `take` failed."""
        ...


class Delivery:
    """One destination, served by one thread."""

    def __init__(self, destination: Destination) -> None:
        self._destination = destination
        self._events: deque[Event] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._complaints: deque[str] = deque(maxlen=8)
        self._failing = False
        self._thread = threading.Thread(target=self._serve, daemon=True, name=f"wan-{destination.title}")
        self._thread.start()

    def put(self, event: Event) -> None:
        """Returns at once; where too many wait, a step more is left out, as a curve can bear."""
        with self._changed:
            if isinstance(event, StepDone) and len(self._events) >= _WAITING:
                return
            self._events.append(event)
            self._changed.notify()

    def complaints(self) -> list[str]:
        """Returns what went wrong since the last call, as sentences; a failure that goes on is told once."""
        found: list[str] = []
        while self._complaints:
            found.append(self._complaints.popleft())
        return found

    def close(self) -> list[str]:
        """Waits until everything is delivered, or patience ends; returns the last complaints."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        until = time.monotonic() + self._destination.patience_s
        while self._thread.is_alive() and time.monotonic() < until:
            self._thread.join(0.1)  # in short pieces: a signal ends the wait on every system
        left = self.complaints()
        if self._thread.is_alive():
            left.append(
                f"{self._destination.title} had not taken everything {self._destination.patience_s:.0f} s after the "
                "run ended. What is missing there is in the run's own folder."
            )
        return left

    def _serve(self) -> None:
        begun, next_try = False, 0.0
        while (event := self._next()) is not None:
            if not begun and time.monotonic() >= next_try:
                begun = self._guarded(self._destination.begin)
                next_try = time.monotonic() + _RETRY_S
            if begun:
                self._guarded(partial(self._destination.take, event))
        if begun:
            self._guarded(self._destination.end)

    def _next(self) -> Event | None:
        with self._changed:
            while not self._events:
                if self._closing:
                    return None
                self._changed.wait()
            return self._events.popleft()

    def _guarded(self, act: Callable[[], None]) -> bool:
        """Returns whether `act` went well; the first of several failures in a row becomes a complaint."""
        try:
            act()
        except BaseException as error:  # a library may raise SystemExit where it has no key
            if not self._failing:
                said = str(error)
                if isinstance(error, OSError) and error.errno in DISK_FULL:
                    said = disk_sentence(error)
                reason = without_secrets(" ".join(said.split()) or type(error).__name__)
                _log.warning("%s failed: %s: %s", self._destination.title, type(error).__name__, reason)
                reason = shortened(reason, 300)
                self._complaints.append(f"{self._destination.title} failed, and the run goes on: {reason}")
            self._failing = True
        else:
            self._failing = False
        return not self._failing
