"""A disk that fails at a chosen call of our file work, once or from then on, as each kind of trouble does."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO
from unittest.mock import patch

from wan_core.files import writing

_MAKES = ("open", "mkdir", "replace", "write", "fsync")
KINDS: dict[int, tuple[str, ...]] = {
    errno.ENOSPC: _MAKES,
    errno.EDQUOT: _MAKES,
    errno.EROFS: ("open", "mkdir", "replace", "unlink", "rmdir"),
    errno.EACCES: ("open", "mkdir", "replace", "unlink", "rmdir"),
    errno.EIO: (*_MAKES, "unlink", "rmdir", "look"),
    errno.EMFILE: ("open", "look"),
}
"""by what the system says: the calls that say it; look is opening a folder, open a file"""
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class _Trouble:
    def __init__(self, number: int, at: int, lasts: bool) -> None:
        self.calls, self._number, self._at, self._lasts = 0, number, at, lasts

    def meet(self, call: str, name: object = None) -> None:
        if call in KINDS[self._number]:
            self.calls += 1
            if self.calls == self._at or (self._lasts and self.calls > self._at > 0):
                raise OSError(self._number, os.strerror(self._number), *([] if name is None else [name]))

    def wrap(self, call: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def met(*given: Any, **options: Any) -> Any:
            is_look = call == "open" and not given[1] & _WRITING
            self.meet("look" if is_look else call, None if call == "fsync" else given[0])
            return real(*given, **options)

        return met

    def open(self, *given: Any, **options: Any) -> Any:
        return _Met(open(*given, **options), self)


class _Met:
    """An open file whose writes reach the disk, or say why not."""

    def __init__(self, file: BinaryIO, trouble: _Trouble) -> None:
        self._file, self._trouble = file, trouble

    def write(self, data: bytes) -> int:
        self._trouble.meet("write")
        return self._file.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> _Met:
        return self

    def __exit__(self, *_error: object) -> None:
        self._file.close()


@contextmanager
def failing(number: int, at: int = 0, lasts: bool = False) -> Iterator[_Trouble]:
    """Inside, the call `at` of those that say `number` says it, and those after it where it lasts; 0: none, counted."""
    trouble = _Trouble(number, at, lasts)
    calls = ("open", "mkdir", "replace", "unlink", "rmdir", "fsync")
    patches = [patch.object(os, call, trouble.wrap(call, getattr(os, call))) for call in calls]
    patches.append(patch.object(writing, "open", trouble.open, create=True))
    for one in patches:
        one.start()
    try:
        yield trouble
    finally:
        for one in patches:
            one.stop()
