"""A thread that reads the next batches ahead while the present one is trained.

A request for another micro-step than the next one starts anew there, and an error is raised by the step that it
belongs to.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, Protocol, TypeVar


class Pinnable(Protocol):
    """A batch of tensors on the CPU."""

    def pinned(self: T) -> T:
        """The same in page-locked memory."""
        ...


T = TypeVar("T", bound=Pinnable)
T_co = TypeVar("T_co", bound=Pinnable, covariant=True)


class Source(Protocol[T_co]):
    """Batches by micro-step, such as `Batches`."""

    def at(self, micro_step: int) -> T_co:
        """The batch of `micro_step`."""
        ...


class BatchReader(Generic[T]):
    """`at` of a source, ahead of time between `start` and `stop`. Holds at most `ahead` batches nobody asked for."""

    def __init__(self, batches: Source[T], *, ahead: int = 2, pin: bool = False) -> None:
        """`pin` puts them into page-locked memory, from which a copy to a GPU does not wait; needs CUDA."""
        self._batches, self._ahead, self._pin = batches, ahead, pin
        self._ready: deque[T | BaseException] = deque()
        self._wanted = 0  # the micro-step of the next answer
        self._next = 0  # the one the thread takes up next
        self._generation = 0
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._running = False

    def start(self) -> None:
        """Reads ahead from now on; the thread starts with the first request."""
        self._running = self._ahead > 0

    def stop(self) -> None:
        """Drop what was read and end the thread after the entry it is reading."""
        with self._changed:
            self._running = False
            self._ready.clear()
            self._changed.notify_all()
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(timeout=5)

    def at(self, micro_step: int) -> T:
        """The batch of `micro_step`; raises what reading it raised."""
        if not self._running:
            return self._read(micro_step)
        with self._changed:
            if self._thread is None or micro_step != self._wanted:
                self._begin(micro_step)
            while not self._ready:
                self._changed.wait(1.0)
            found = self._ready.popleft()
            self._wanted += 1
            self._changed.notify_all()
        if isinstance(found, BaseException):
            raise found
        return found

    def _begin(self, micro_step: int) -> None:
        """Read from `micro_step` on (called with the lock)."""
        self._ready.clear()
        self._wanted = self._next = micro_step
        self._generation += 1
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="batch reader", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _work(self) -> None:
        me = threading.current_thread()
        while True:
            with self._changed:
                while self._thread is me and len(self._ready) >= self._ahead:
                    self._changed.wait()
                if self._thread is not me:
                    return
                micro_step, generation = self._next, self._generation
                self._next += 1
            try:
                found: T | BaseException = self._read(micro_step)
            except BaseException as error:  # raised where it is asked for
                found = error
            with self._changed:
                if self._thread is me and generation == self._generation:
                    self._ready.append(found)
                    self._changed.notify_all()

    def _read(self, micro_step: int) -> T:
        batch = self._batches.at(micro_step)
        return batch.pinned() if self._pin else batch
