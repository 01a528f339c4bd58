"""The controller of a run with several ranks on this machine: starts them, owns their pipes, ends them all together.

Only rank 0 reads commands and writes events, so the protocol is that of a single worker, and its exit code is ours.
The ranks meet at a file: torchrun's own store needs libuv, which torch for Windows does not have. On a cluster the
user's torchrun starts the ranks, and nothing of this file is used.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from ..control import stop_on_signals
from ..errors import RESUME, ExitCode, RankLost, failure
from ..events import DecodeWanted, Failed, to_line
from ..job.config import read_status, write_status
from ..pipes import chunks
from ..train import MEETING
from ..words import sentences_back, shortened

_LOST_S = 30.0
"""how long the other ranks may take to notice that one is gone, before they are ended"""


class _Ending(NamedTuple):
    rank: int
    code: int
    failed: dict[str, Any]
    """the event in which it said why; empty without one"""
    silent: bool = False
    """whether it was ended because it went on without a word after another one broke"""


def start_ranks(directory: Path, ranks: int, options: argparse.Namespace, out: BinaryIO) -> int:
    """Train with `ranks` processes; returns the exit code a single worker would return."""
    command = [sys.executable, "-X", "utf8", str(Path(__file__).resolve().parent.with_name("launch.py"))]
    command += [options.command, str(directory), "--controlled"]
    if options.roots:
        command += ["--roots", str(options.roots.resolve())]
    if options.trackers:
        command += ["--trackers", str(options.trackers.resolve())]
    if options.send_later:
        command += ["--send-later"]
    if options.profile:
        command += ["--profile", str(options.profile)]
    if options.max_steps:
        command += ["--max-steps", str(options.max_steps)]
    if options.embed_workflow:
        command += ["--embed-workflow"]
    if options.cache_seconds:
        command += ["--cache-seconds", str(options.cache_seconds)]
    with tempfile.TemporaryDirectory(prefix="wan_ranks", ignore_cleanup_errors=True) as meeting:
        crew = _Crew(command, ranks, meeting, out, decodes=options.controlled)
        try:
            # Rank 0 always listens to us: a signal becomes a command, and our death the end of its stdin.
            stop_on_signals(crew.stop)
            if options.controlled:
                threading.Thread(target=crew.forward, args=(os.dup(0),), daemon=True, name="commands").start()
            endings = crew.follow()
        finally:
            crew.end()
    return _exit_code(endings, directory, out)


class _Crew:
    """The processes of all ranks."""

    def __init__(self, command: list[str], ranks: int, meeting: str, out: BinaryIO, *, decodes: bool) -> None:
        """`decodes`: whether whoever started us may decode clips."""
        self._out, self._decodes = out, decodes
        self._said: queue.Queue[tuple[int, bytes | None]] = queue.Queue()
        self._sending = threading.Lock()
        self._asked = False
        self._processes: list[subprocess.Popen[bytes]] = []
        shared = os.environ | {
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
            "WORLD_SIZE": str(ranks),
            "LOCAL_WORLD_SIZE": str(ranks),
            MEETING: "ranks",
        }
        for rank in range(ranks):
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                env=shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                # They name the file by its short name: torch opens it by the letters of the system's own language,
                # which spell not every folder of temporary files.
                cwd=meeting,
                creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
            )
            self._processes.append(process)
            threading.Thread(target=self._listen, args=(rank, process), daemon=True, name=f"rank {rank}").start()

    def _listen(self, rank: int, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with contextlib.suppress(OSError, ValueError):
            for line in process.stdout:
                self._said.put((rank, line))
        process.wait()
        self._said.put((rank, None))

    def follow(self) -> list[_Ending]:
        """Pass rank 0's events on until every rank has ended; once one broke, the rest are not waited for."""
        failed: dict[int, dict[str, Any]] = {}
        endings: list[_Ending] = []
        silent: list[int] = []
        deadline = 0.0
        while len(endings) < len(self._processes):
            try:
                rank, line = self._said.get(timeout=0.5)
            except queue.Empty:
                if deadline and time.monotonic() > deadline:
                    silent += self.end()
                continue
            if line is None:
                code = self._processes[rank].returncode
                endings.append(_Ending(rank, code, failed.get(rank, {}), rank in silent))
                if code not in (ExitCode.DONE, ExitCode.STOPPED):
                    deadline = deadline or time.monotonic() + _LOST_S
            elif event := _said(line, Failed.name):  # which of them is the cause is known at the end
                failed[rank] = event
            elif rank == 0:
                with contextlib.suppress(OSError):  # the reader is gone; the end of our stdin tells rank 0 to stop
                    self._out.write(line)
                if not self._decodes and (event := _said(line, DecodeWanted.name)):
                    self._tell({"command": "decoded", "sample_id": event.get("sample_id"), "nobody": True})
        return endings

    def forward(self, file: int) -> None:
        """Pass commands from our stdin to rank 0; the end of ours is the end of theirs."""
        for chunk in chunks(file):
            with self._sending, contextlib.suppress(OSError, ValueError):
                self._stdin.write(chunk)
                self._stdin.flush()
        self._close()

    def stop(self, reason: str) -> bool:
        """Ask rank 0 to stop; False when it was asked before, so that a second signal ends at once."""
        if self._asked:
            return False
        self._asked = True  # a closed stdin does not tell: ours ends too when whoever started us goes away
        self._tell({"command": "stop", "reason": reason})
        self._close()
        return True

    def _tell(self, command: dict[str, Any]) -> None:
        """Send a command of our own to rank 0."""
        with contextlib.suppress(OSError, ValueError):
            self._stdin.write(json.dumps(command).encode() + b"\n")
            self._stdin.flush()

    def _close(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stdin.close()

    @property
    def _stdin(self) -> Any:
        return self._processes[0].stdin

    def end(self) -> list[int]:
        """End what still runs, and say which ranks did; committed saves stand. Ranks leave signals to us, so nothing
        softer would be heard."""
        running = [rank for rank, process in enumerate(self._processes) if process.poll() is None]
        for rank in running:
            self._processes[rank].kill()
        for rank in running:
            self._processes[rank].wait()
        return running


def _said(line: bytes, name: str) -> dict[str, Any]:
    """Returns the event of `line` where it is one of that name, else nothing."""
    if f'"{name}"'.encode() not in line:
        return {}
    try:
        event = sentences_back(json.loads(line))
    except ValueError:
        return {}
    return event if event.get("event") == name else {}


def _exit_code(endings: list[_Ending], directory: Path, out: BinaryIO) -> int:
    """Returns rank 0's own code; after a failure that of the rank where it began, whose reason is told and kept."""
    bad = [ending for ending in endings if ending.code not in (ExitCode.DONE, ExitCode.STOPPED)]
    if not bad:
        return next(ending.code for ending in endings if ending.rank == 0)
    cause = min(bad, key=_distance)
    if cause.failed:
        message, kind, code = (cause.failed[name] for name in ("message", "kind", "exit_code"))
    else:
        message, kind, code = str(_lost(cause)), RankLost.__name__, int(ExitCode.BUG)
    with contextlib.suppress(OSError):
        out.write(to_line(Failed(message=message, kind=kind, exit_code=code)).encode("ascii"))
    if cause.rank != 0 or cause.silent:
        _keep_reason(directory, message)
    return int(code)


def _lost(cause: _Ending) -> RankLost:
    """Returns what to say of a rank that said nothing itself."""
    if cause.silent:
        what = (
            f"Rank {cause.rank} of this run went silent: the others gave up waiting for it, and it was ended. If that "
            "happens again, leave its GPU out in Split Across GPUs."
        )
    else:
        what = (
            f"Rank {cause.rank} of this run ended without a word (exit code {cause.code}; on Linux -9 often means "
            "that memory ran out)."
        )
    return RankLost(failure(what, closing=RESUME))


def _distance(ending: _Ending) -> int:
    """Returns how far from the cause an ending is.

    Those who miss another rank come last, and nobody misses a dead one that had to be ended before its time.
    """
    if ending.failed.get("kind") == RankLost.__name__:
        return 2
    return int(ending.silent)


def _keep_reason(directory: Path, message: str) -> None:
    """Write the cause into the run's status: rank 0 wrote what it saw, that another one was gone."""
    with contextlib.suppress(OSError):
        write_status(directory, replace(read_status(directory), state="failed", reason=shortened(message, 1000)))
