"""Prefetches the next batches on a thread during a training step."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, Protocol, TypeVar

from ..words import first_line, logger

_log = logger(__name__)


class Pinnable(Protocol):
    """A batch of tensors on the CPU."""

    def pinned(self: T) -> T:
        """Returns a copy in pinned memory."""
        ...


T = TypeVar("T", bound=Pinnable)


class BatchReader(Generic[T]):
    """Prefetches up to `ahead` batches between `start` and `stop`. Not thread-safe.

    Requests come in order of micro-steps; a request out of order drops the prefetched batches. A request raises the
    error of reading its batch.
    """

    def __init__(self, batch_at: Callable[[int], T], *, ahead: int = 2, pin: bool = False) -> None:
        """`batch_at`: micro-step -> batch. `pin` copies batches to pinned memory, so that copies to the GPU do not
        block; needs CUDA. Pinning ends when the system refuses to page-lock more."""
        self._batch_at, self._ahead, self._pin = batch_at, ahead, pin
        self._waiting: deque[tuple[int, Future[T]]] = deque()
        self._thread: ThreadPoolExecutor | None = None

    def start(self) -> None:
        """Enables prefetching. The thread starts at the first request."""
        if self._ahead > 0 and self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="batch reader")

    def stop(self) -> None:
        """Drop prefetched batches and end the thread."""
        thread, self._thread = self._thread, None
        self._waiting.clear()
        if thread is not None:
            thread.shutdown(cancel_futures=True)

    def at(self, micro_step: int) -> T:
        """Returns the batch of `micro_step`; raises the error of reading it."""
        if self._thread is None:
            return self._read(micro_step)
        if not self._waiting or self._waiting[0][0] != micro_step:
            for _, dropped in self._waiting:
                dropped.cancel()
            self._waiting.clear()
        # One batch more than `ahead`, because the thread also reads the batch of this request.
        for coming in range(micro_step + len(self._waiting), micro_step + self._ahead + 1):
            self._waiting.append((coming, self._thread.submit(self._read, coming)))
        return self._waiting.popleft()[1].result()

    def _read(self, micro_step: int) -> T:
        batch = self._batch_at(micro_step)
        if self._pin:
            try:
                return batch.pinned()
            except RuntimeError as error:
                self._pin = False
                _log.warning("Batches are copied from pageable memory: %s", first_line(error))
        return batch
