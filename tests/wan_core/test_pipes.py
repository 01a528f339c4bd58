"""Pipes are read whole, in lines, to their end; where Windows asks first what is there, no read is begun too early."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from wan_core import pipes
from wan_core.control import PipeControl
from wan_core.pipes import chunks, lines, peeking


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    for file in (reader, writer):
        with contextlib.suppress(OSError):
            os.close(file)


def test_lines_come_whole_however_the_bytes_were_cut_and_long_ones_in_pieces(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    os.write(writer, b'{"a": 1}\n{"b"')
    os.write(writer, b": 2}\n" + b"x" * 10 + b"\nlast")
    os.close(writer)
    assert list(lines(reader, 9)) == [b'{"a": 1}\n', b'{"b": 2}\n', b"x" * 9, b"x\n", b"last"]


def test_a_command_given_before_anyone_listens_is_obeyed_once_somebody_does(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    control = PipeControl(reader)
    os.write(writer, b'{"command": "stop", "reason": "Cancel was pressed"}\n')
    time.sleep(0.05)
    assert control.stop_reason() == ""
    control.listen()
    deadline = time.monotonic() + 5
    while not control.stop_reason() and time.monotonic() < deadline:
        time.sleep(0.001)
    assert control.stop_reason() == "Cancel was pressed"


class Kernel:
    """PeekNamedPipe and GetFileType of Windows for the reading end of a pipe of this system."""

    def __init__(self, file: int, kind: int = 3) -> None:
        self.file, self.kind, self.asked = file, kind, 0

    def GetFileType(self, handle: Any) -> int:
        assert handle == "handle"
        return self.kind

    def PeekNamedPipe(self, handle: Any, buffer: None, size: int, read: None, waiting: Any, left: None) -> int:
        import fcntl
        import select
        import termios

        assert (handle, buffer, size, read, left) == ("handle", None, 0, None, None)
        self.asked += 1
        count = ctypes.c_int()
        fcntl.ioctl(self.file, termios.FIONREAD, count)
        ctypes.cast(waiting, ctypes.POINTER(ctypes.c_ulong))[0] = count.value
        ended = not count.value and bool(select.select([self.file], [], [], 0)[0])
        return 0 if ended else 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="asks a POSIX pipe how full it is")
def test_on_windows_a_read_begins_only_once_something_is_there(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = pipe
    kernel = Kernel(reader)
    reads: list[int] = []
    read = os.read

    def noted(file: int, size: int) -> bytes:
        if file == reader:
            reads.append(size)
        return read(file, size)

    monkeypatch.setattr(pipes.os, "read", noted)
    found: list[bytes] = []
    thread = threading.Thread(target=lambda: found.extend(chunks(reader, peeking(kernel, "handle"))), daemon=True)
    thread.start()
    while kernel.asked < 3:
        time.sleep(0.01)
    assert reads == [], "a read is pending while the pipe is silent"
    os.write(writer, b"stop\n")
    os.write(writer, b"y" * 5)
    os.close(writer)
    thread.join(5)
    assert not thread.is_alive()
    assert b"".join(found) == b"stop\nyyyyy"


def test_what_is_no_pipe_on_windows_is_read_as_it_is(pipe: tuple[int, int]) -> None:
    assert peeking(Kernel(pipe[0], kind=2), "handle") is None
