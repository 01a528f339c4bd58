"""Child processes that open untrusted files: messages and both ends of the pipes. Standard library only.

A message is a length, a JSON header and raw bytes. Every request has one answer.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import queue
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, cast

from .errors import DependencyError
from .pipes import waiter
from .words import sentences_back, with_sentences

_LENGTHS = struct.Struct(">IQ")
_MAX_HEADER_BYTES = 16 << 20
_MAX_PAYLOAD_BYTES = 8 << 30
_PIPE_BYTES = 1 << 20  # Linux's limit for unprivileged processes
_LAUNCH = Path(__file__).resolve().parent / "launch.py"
OWN_GROUP = sum(getattr(subprocess, name, 0) for name in ("CREATE_NEW_PROCESS_GROUP", "CREATE_NO_WINDOW"))
"""Windows flags for a process that outlives its parent and ignores the terminal's Ctrl+C; 0 elsewhere, where
`start_new_session` has that effect"""

Answer = tuple[dict[str, Any], Any]
"""header and raw bytes"""
Operation = Callable[[dict[str, Any], bytearray], Answer]


def send(stream: BinaryIO, header: dict[str, Any], payload: Any = b"") -> None:
    """Send one message; `payload` has the buffer interface."""
    text = json.dumps(with_sentences(header)).encode()
    body = memoryview(payload).cast("B")
    stream.write(_LENGTHS.pack(len(text), len(body)) + text)
    if len(body):
        stream.write(body)
    stream.flush()


def receive(stream: BinaryIO, new: Callable[[int], Any] = bytearray) -> tuple[dict[str, Any], Any] | None:
    """Returns the next message; None if the other process has ended, also inside a message.

    `new(size)` allocates the buffer of the raw bytes.
    """
    lengths = _read(stream, _LENGTHS.size)
    if lengths is None:
        return None
    header_bytes, payload_bytes = _LENGTHS.unpack(lengths)
    if header_bytes > _MAX_HEADER_BYTES or payload_bytes > _MAX_PAYLOAD_BYTES:
        return None
    header = _read(stream, header_bytes)
    payload = _read(stream, payload_bytes, new)
    if header is None or payload is None:
        return None
    fields: Any = json.loads(header)
    return (sentences_back(cast("dict[str, Any]", fields)), payload) if isinstance(fields, dict) else None


def _read(stream: BinaryIO, size: int, new: Callable[[int], Any] = bytearray) -> Any:
    data = new(size)
    view = memoryview(data)
    done = 0
    while done < size:
        count = cast("Any", stream).readinto(view[done:])
        if not count:
            return None
        done += count
    return data


class Child:
    """A running child process. One thread exchanges messages, so that waiting can be interrupted; one reads stderr."""

    def __init__(self, command: str, new: Callable[[int], Any] = bytearray) -> None:
        """`command`: argument of launch.py; `new`: as in `receive`. Raises DependencyError if the process cannot be
        started.
        """
        self._new = new
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-X", "utf8", str(_LAUNCH), command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                # With a thread per core, numpy would reserve more address space than the child's memory limit.
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
                creationflags=subprocess.CREATE_NO_WINDOW if sys.platform == "win32" else 0,
            )
        except OSError as error:
            raise DependencyError(
                f"The process that opens files cannot be started ({error.strerror}). Close other programs if memory is "
                "full; otherwise reinstall the Python that ComfyUI runs with."
            ) from error
        self.pid = self._process.pid
        _widen(self._process.stdout)
        self.answers: queue.Queue[Answer | None] = queue.Queue()
        self._requests: queue.Queue[tuple[dict[str, Any], Any] | None] = queue.Queue()
        self._stderr: collections.deque[bytes] = collections.deque(maxlen=20)
        self._threads = [
            threading.Thread(target=self._talk, daemon=True),
            threading.Thread(target=self._drain, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def ask(self, header: dict[str, Any], payload: Any) -> None:
        self._requests.put((header, payload))

    def end(self) -> int:
        """Kill the child and return its exit code. A child writes no files, so killing it loses nothing."""
        self._requests.put(None)
        with contextlib.suppress(OSError):
            if self._process.poll() is None:
                self._process.kill()
        code = self._process.wait()
        for thread in self._threads:
            thread.join()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()
        return code

    def last_words(self) -> str:
        """Returns ": " and the last line of stderr; "" if there is none."""
        text = b"".join(self._stderr).decode("utf-8", "replace").strip()
        return f": {text.splitlines()[-1][:200]}" if text else ""

    def _talk(self) -> None:
        stdin: Any = self._process.stdin
        stdout: Any = self._process.stdout
        try:
            self.answers.put(receive(stdout, self._new))
            while (request := self._requests.get()) is not None:
                send(stdin, *request)
                self.answers.put(receive(stdout, self._new))
        except (OSError, ValueError, RecursionError, MemoryError):  # the child ended, or sent no valid message
            self.answers.put(None)

    def _drain(self) -> None:
        stderr: Any = self._process.stderr
        with contextlib.suppress(OSError, ValueError):
            for line in stderr:
                self._stderr.append(line)


def _widen(pipe: Any) -> None:
    """Enlarge a pipe's buffer on Linux: the default needs thousands of context switches for a clip."""
    if sys.platform == "linux":
        import fcntl

        with contextlib.suppress(OSError):
            fcntl.fcntl(pipe.fileno(), fcntl.F_SETPIPE_SZ, _PIPE_BYTES)


def serve(prepare: Callable[[], Operation], memory_bytes: int) -> int:
    """The child's main loop: answers requests until stdin closes. `prepare` imports libraries.

    Answers go to a private copy of stdout. File descriptor 1 itself is redirected to stderr, so that output of
    libraries cannot break the protocol. A thread watches stdin and ends the process when the parent dies, even if a
    library hangs.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C reaches the process group; the parent handles it
    replies = _private_stdout()
    _limit_memory(memory_bytes)
    try:
        answer = prepare()
    except (ImportError, DependencyError) as error:
        send(replies, {"error": "dependency", "message": str(error), "complete": isinstance(error, DependencyError)})
        return 1
    send(replies, {})
    requests: queue.Queue[tuple[dict[str, Any], bytearray]] = queue.Queue()
    threading.Thread(target=_listen, args=(requests,), daemon=True).start()
    while True:
        send(replies, *answer(*requests.get()))


def _listen(requests: queue.Queue[tuple[dict[str, Any], bytearray]]) -> None:
    # Unbuffered: `waiter` asks the pipe for available bytes, and a buffer would have taken them.
    stdin = os.fdopen(os.dup(0), "rb", buffering=0)
    wait = waiter(stdin.fileno())
    wait()
    while (message := receive(stdin)) is not None:
        requests.put(message)
        wait()
    os._exit(0)  # not sys.exit: a library may hang in another thread


def _private_stdout() -> BinaryIO:
    descriptor = os.dup(1)
    os.dup2(2, 1)
    if sys.platform == "win32":
        import msvcrt

        msvcrt.setmode(descriptor, os.O_BINARY)
    return os.fdopen(descriptor, "wb")


def _limit_memory(limit: int) -> None:
    """Limits the address space on Linux, so that oversized files fail with MemoryError."""
    if sys.platform == "linux":
        import resource

        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        limit = limit if hard == resource.RLIM_INFINITY else min(hard, limit)
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
