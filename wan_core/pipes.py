"""Reads pipes that may be silent for hours, without blocking the process on Windows.

Windows serialises operations on a pipe: while a thread waits in a read of stdin, any query of stdin blocks too. Many
libraries query stdin during their import, and thus block all imports. So on Windows a read starts only when data is
available.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

_CHUNK = 1 << 16
_POLL_S = 0.02
_FILE_TYPE_PIPE = 3


def lines(file: int, longest: int) -> Iterator[bytes]:
    """Yields lines of the pipe `file` until it is closed. Lines over `longest` bytes are split."""
    rest = b""
    for chunk in chunks(file):
        *finished, rest = (rest + chunk).split(b"\n")
        for line in finished:
            yield from _pieces(line + b"\n", longest)
        while len(rest) >= longest:
            yield rest[:longest]
            rest = rest[longest:]
    if rest:
        yield rest


def chunks(file: int, waiting: Callable[[], int | None] | None = None) -> Iterator[bytes]:
    """Yields chunks of the pipe `file` as they arrive, until it is closed."""
    wait = waiter(file, waiting)
    while True:
        wait()
        chunk = os.read(file, _CHUNK)
        if not chunk:
            return
        yield chunk


def waiter(file: int, waiting: Callable[[], int | None] | None = None) -> Callable[[], None]:
    """Returns a function that waits until a read of the pipe `file` does not block.

    `waiting` returns the number of available bytes, or None at the end of the pipe.
    """
    if waiting is None and sys.platform == "win32":
        waiting = _waiting_on_windows(file)
    if waiting is None:
        return lambda: None

    def wait() -> None:
        # Polling, because Windows cannot select() on pipes.
        while waiting() == 0:
            time.sleep(_POLL_S)

    return wait


def _pieces(line: bytes, longest: int) -> Iterator[bytes]:
    for start in range(0, len(line), longest):
        yield line[start : start + longest]


def _waiting_on_windows(file: int) -> Callable[[], int | None] | None:
    """Returns `peeking` for `file`; None for a console or a regular file."""
    import ctypes
    import msvcrt  # pyright: ignore

    kernel: Any = ctypes.WinDLL("kernel32")  # type: ignore[attr-defined]
    return peeking(kernel, ctypes.c_void_p(msvcrt.get_osfhandle(file)))  # type: ignore[attr-defined]


def peeking(kernel: Any, handle: Any) -> Callable[[], int | None] | None:
    """Returns a function that counts the available bytes of the pipe `handle` by Windows' PeekNamedPipe; None if the
    handle is no pipe.
    """
    import ctypes

    if kernel.GetFileType(handle) != _FILE_TYPE_PIPE:
        return None
    count = ctypes.c_ulong(0)

    def waiting() -> int | None:
        # PeekNamedPipe fails once the other end is closed and all bytes are read.
        return count.value if kernel.PeekNamedPipe(handle, None, 0, None, ctypes.byref(count), None) else None

    return waiting
