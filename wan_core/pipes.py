"""Reading a pipe that may stay silent for hours, without ever standing in the way of the rest of the process.

Windows serialises what is done to one pipe. While a thread waits in a read of stdin, whoever asks what stdin is waits
too, and the start-up code of many libraries does just that, holding the lock under which libraries are loaded. So there
a read is begun only once something is there to be read.
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
    """Yields the lines that come through the pipe `file` until its other end is closed; longer ones come in pieces."""
    rest = b""
    for chunk in chunks(file):
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield from _pieces(line + b"\n", longest)
        while len(rest) >= longest:
            yield rest[:longest]
            rest = rest[longest:]
    if rest:
        yield rest


def chunks(file: int, waiting: Callable[[], int | None] | None = None) -> Iterator[bytes]:
    """Yields the bytes that come through the pipe `file`, as they come, until its other end is closed."""
    wait = waiter(file, waiting)
    while True:
        wait()
        chunk = os.read(file, _CHUNK)
        if not chunk:
            return
        yield chunk


def waiter(file: int, waiting: Callable[[], int | None] | None = None) -> Callable[[], None]:
    """A function to call before each read of the pipe `file`: it returns once the read would not wait.

    Where a pending read harms nobody it returns at once. `waiting` says how many bytes stand in the pipe, or None after
    its end.
    """
    if waiting is None and sys.platform == "win32":
        waiting = _waiting_on_windows(file)
    if waiting is None:
        return lambda: None

    def wait() -> None:
        while waiting() == 0:
            time.sleep(_POLL_S)

    return wait


def _pieces(line: bytes, longest: int) -> Iterator[bytes]:
    for start in range(0, len(line), longest):
        yield line[start : start + longest]


def _waiting_on_windows(file: int) -> Callable[[], int | None] | None:
    """Returns the question `peeking` puts for the pipe `file`; None for a console or a file, which is read as it is."""
    import ctypes
    import msvcrt  # pyright: ignore

    kernel: Any = ctypes.WinDLL("kernel32")  # type: ignore[attr-defined]
    return peeking(kernel, ctypes.c_void_p(msvcrt.get_osfhandle(file)))  # type: ignore[attr-defined]


def peeking(kernel: Any, handle: Any) -> Callable[[], int | None] | None:
    """Returns a function that asks Windows' `kernel` for the bytes that stand in the pipe `handle`; None if it is none.

    Source: PeekNamedPipe and GetFileType of the Windows API.
    """
    import ctypes

    if kernel.GetFileType(handle) != _FILE_TYPE_PIPE:
        return None
    count = ctypes.c_ulong(0)

    def waiting() -> int | None:
        # It fails once the other end is closed and everything was read.
        return count.value if kernel.PeekNamedPipe(handle, None, 0, None, ctypes.byref(count), None) else None

    return waiting
