"""The spare: one engine process that has imported its libraries and belongs to no run yet (ADR 27).

It is started while the nodes before Train Wan LoRA work, waits on its stdin, and is ended when the queue entry that may
want it is over, when that takes long, and, through the end of its stdin, with this process.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .process import PACK, engine_command, signal_tree, start_process, worker_environment

__all__ = ["SPARE", "Spare"]

_IDLE_S = 120.0
"""after which memory is worth more: a graph that works so long on its clips does not feel the start of a worker"""
_POLL_S = 0.25


@dataclass(frozen=True)
class _Waiting:
    """A process that waits to be told what to do."""

    process: subprocess.Popen[bytes]
    start: list[str]
    """its command line without the word that makes it a spare"""
    environment: dict[str, str]
    code: object
    """what `code_mark` was before it imported anything"""
    over: threading.Event = field(default_factory=threading.Event)
    """it was taken, or ended"""


class Spare:
    """At most one spare. Threads may call it."""

    def __init__(self, idle_s: float = _IDLE_S) -> None:
        self._idle_s = idle_s
        self._lock = threading.Lock()
        self._waiting: _Waiting | None = None

    def prepare(self, wanted: Callable[[], bool]) -> None:
        """Start one that lives for as long as it is `wanted`, unless one is there already. Never raises OSError."""
        with self._lock, contextlib.suppress(OSError):  # without it a run takes a few seconds longer
            if not wanted() or self._is_fit():
                return
            self._end()
            start, environment, code = engine_command(), worker_environment(os.environ), code_mark(PACK)
            with tempfile.TemporaryFile() as said:
                # An empty name in PYTHONPATH is the folder of the process: none that others may write into.
                process = start_process([*start, "spare"], PACK, environment, said)
            self._waiting = waiting = _Waiting(process, start, environment, code)
            threading.Thread(target=self._watch, args=(waiting, wanted), daemon=True, name="wan-trainer-spare").start()

    def take(self, command: Sequence[str], folder: Path, log: Path) -> subprocess.Popen[bytes] | None:
        """Returns the spare, told to be `command` in `folder` with its words in `log`; None where there is none for it.

        It fits when it is the same program in the same environment, with the code as it is on disk. One that does not
        is left to whom it fits.
        """
        with self._lock:
            waiting = self._waiting
            if waiting is None or not self._is_fit() or list(command[: len(waiting.start)]) != waiting.start:
                return None
            told = {"words": list(command[len(waiting.start) :]), "folder": str(folder), "log": str(log)}
            assert waiting.process.stdin is not None
            try:
                waiting.process.stdin.write(json.dumps(told, ensure_ascii=True).encode("ascii") + b"\n")
                waiting.process.stdin.flush()
            except OSError:
                self._end()
                return None
            self._waiting = None
            waiting.over.set()
            return waiting.process

    def end(self) -> None:
        """End the spare, where there is one: nobody is going to want it."""
        with self._lock:
            self._end()

    def _is_fit(self) -> bool:
        """Returns whether there is one that lives, and is what would be started now."""
        waiting = self._waiting
        return (
            waiting is not None
            and waiting.process.poll() is None
            and (waiting.start, waiting.environment, waiting.code)
            == (engine_command(), worker_environment(os.environ), code_mark(PACK))
        )

    def _end(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is None:
            return
        waiting.over.set()
        signal_tree(waiting.process, force=True)  # it has nothing to lose
        with contextlib.suppress(subprocess.TimeoutExpired):
            waiting.process.wait(10)
        for pipe in (waiting.process.stdin, waiting.process.stdout):
            with contextlib.suppress(OSError, ValueError):
                if pipe is not None:
                    pipe.close()

    def _watch(self, waiting: _Waiting, wanted: Callable[[], bool]) -> None:
        deadline = time.monotonic() + self._idle_s
        while not waiting.over.wait(_POLL_S):
            if waiting.process.poll() is not None or time.monotonic() > deadline or not wanted():
                with self._lock:
                    if self._waiting is waiting:
                        self._end()
                return


def code_mark(pack: Path) -> object:
    """Returns what changes with every file of the engine's code, as when the pack is updated while ComfyUI runs."""
    try:
        found = ((str(file), file.stat()) for file in sorted((pack / "wan_core").rglob("*.py")))
        return [(name, info.st_size, info.st_mtime_ns) for name, info in found]
    except OSError:  # as while files are exchanged
        return object()  # equals nothing


SPARE = Spare()
"""of this ComfyUI"""
