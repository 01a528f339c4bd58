"""Processes that die at a chosen step of their file work, as a power cut would end them. POSIX only."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


def forked(work: Callable[[], None]) -> int:
    """Exit code of `work` in a forked child; 0 when it returns."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # fork beside threads: the child only does file work
        pid = os.fork()
    if pid == 0:
        code = 99
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


class Dying:
    """Ends this process at the n-th call of what `install` wraps: before it, or after it."""

    def __init__(self, last: int, moment: str) -> None:
        self.calls, self._last, self._moment = 0, last, moment

    def wrap(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*words: Any, **options: Any) -> Any:
            self.calls += 1
            if self.calls == self._last and self._moment == "before":
                os._exit(137)
            try:
                return call(*words, **options)
            finally:
                if self.calls == self._last:
                    os._exit(137)

        return counted

    def install(self) -> None:
        """In the child only; nothing is put back."""
        raise NotImplementedError


def steps_of(work: Callable[[], Any], counting: Dying) -> int:
    """How many wrapped calls `work` makes, counted in a child; `counting` never dies (its last is -1)."""
    read, write = os.pipe()

    def count() -> None:
        counting.install()
        work()
        os.write(write, str(counting.calls).encode())

    assert forked(count) == 0
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        return int(pipe.read())


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)
