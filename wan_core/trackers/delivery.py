"""Delivers events in a thread per destination, so that no step waits and no failure ends a run."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol

from ..events import Event, StepDone
from ..files import DISK_FULL
from ..words import logger, shortened

_log = logger(__name__)
_WAITING = 4096
"""when this many events are queued, further step events are dropped; other events are always queued"""
_RETRY_S = 60.0
"""interval between two calls of a failing `begin`"""


class Destination(Protocol):
    """A receiver of a run's events. Its methods may raise any exception and may block."""

    title: str
    """name in sentences, such as "The webhook" """
    patience_s: float
    """longest wait of `Delivery.close` since the last progress"""

    def begin(self) -> None:
        """Called once, before the first event."""
        ...

    def take(self, event: Event) -> None:
        """Called for each event, in order."""
        ...

    def end(self) -> None:
        """Called once, after the last event, also if `take` failed."""
        ...


class Delivery:
    """Delivers events to one destination, in a thread."""

    def __init__(self, destination: Destination) -> None:
        self._destination = destination
        self._events: deque[Event] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._complaints: deque[str] = deque(maxlen=8)
        self._failing = False
        self._thread = threading.Thread(target=self._serve, daemon=True, name=f"tracker {destination.title}")
        self._thread.start()

    def put(self, event: Event) -> None:
        """Queues an event without blocking; drops a step while too many events wait."""
        with self._changed:
            if isinstance(event, StepDone) and len(self._events) >= _WAITING:
                return
            self._events.append(event)
            self._changed.notify()

    def complaints(self) -> list[str]:
        """Returns the failures since the last call, as sentences; of consecutive failures only the first."""
        return [self._complaints.popleft() for _ in range(len(self._complaints))]

    @property
    def is_over(self) -> bool:
        """Whether all events are delivered after `close`."""
        return not self._thread.is_alive()

    def close(self, most_s: float | None = None) -> list[str]:
        """Waits until all events are delivered, at most `most_s`, or `patience_s` without progress; returns the last
        complaints."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        began = time.monotonic()
        until = began + (self._destination.patience_s if most_s is None else most_s)
        while self._thread.is_alive() and time.monotonic() < until:
            self._thread.join(0.1)  # short, because on Windows a signal does not interrupt a join
            if most_s is None:  # a destination that sends much records its progress in `moved_at`
                until = max(began, getattr(self._destination, "moved_at", began)) + self._destination.patience_s
        left = self.complaints()
        if self._thread.is_alive():
            left.append(
                f"{self._destination.title} had not received everything {time.monotonic() - began:.0f} s after "
                "the run ended. The run's folder has everything."
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
        """Returns whether `act` succeeded; the first of consecutive failures becomes a complaint."""
        try:
            act()
        except BaseException as error:  # a tracker's library may raise SystemExit without a key
            if not self._failing:
                reason = reason_of(error)
                _log.warning("%s failed: %s: %s", self._destination.title, type(error).__name__, reason)
                self._complaints.append(f"{self._destination.title} failed, and the training continues: {reason}")
            self._failing = True
        else:
            self._failing = False
        return not self._failing


def reason_of(error: BaseException) -> str:
    """Returns an error's message in one short line, without secrets."""
    # Imported here, since both import torch, which `send` needs only for a failure.
    from ..export.secrets import without_secrets
    from ..job import disk_sentence

    said = disk_sentence(error) if isinstance(error, OSError) and error.errno in DISK_FULL else str(error)
    return shortened(without_secrets(" ".join(said.split()) or type(error).__name__), 300)
