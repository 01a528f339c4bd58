"""The controller of a run with several ranks on this machine: starts the ranks, owns their pipes, ends them together.

Only rank 0 reads commands and writes events, so protocol and exit code are those of a single worker. The ranks
rendezvous through a file, because torchrun's store needs libuv, which torch for Windows lacks. On a cluster, the user's
torchrun starts the ranks without this controller.
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
"""seconds from the failure of a rank until the controller kills the others"""


class _Ending(NamedTuple):
    rank: int
    code: int
    failed: dict[str, Any]
    """the rank's error event; {} without one"""
    silent: bool = False
    """True if the controller killed this rank after the failure of another rank"""


def start_ranks(directory: Path, ranks: int, options: argparse.Namespace, out: BinaryIO) -> int:
    """Trains with `ranks` processes; returns the exit code, as a single worker does."""
    command = [sys.executable, "-X", "utf8", str(Path(__file__).resolve().parent.with_name("launch.py"))]
    command += [options.command, str(directory), "--controlled"]
    for name in ("roots", "trackers", "send_later", "profile", "max_steps", "embed_workflow", "cache_seconds"):
        if value := getattr(options, name):
            said = value.resolve() if isinstance(value, Path) else value
            command += [f"--{name.replace('_', '-')}", *([] if value is True else [str(said)])]
    with tempfile.TemporaryDirectory(prefix="wan_ranks", ignore_cleanup_errors=True) as meeting:
        crew = _Ranks(command, ranks, meeting, out, decodes=options.controlled)
        try:
            # Rank 0 is controlled through its stdin: a signal becomes a command, and stdin closes when this process
            # ends.
            stop_on_signals(crew.stop)
            if options.controlled:
                threading.Thread(target=crew.forward, args=(os.dup(0),), daemon=True, name="commands").start()
            endings = crew.follow()
        finally:
            crew.end()
    return _exit_code(endings, directory, out)


class _Ranks:
    def __init__(self, command: list[str], ranks: int, meeting: str, out: BinaryIO, *, decodes: bool) -> None:
        """`decodes`: whether the process that started this one decodes previews."""
        self._out, self._decodes = out, decodes
        self._said: queue.Queue[tuple[int, bytes | None]] = queue.Queue()
        self._stop_requested = False
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
                # The rendezvous file is named relative to this folder: on Windows, torch opens it in the system's code
                # page, which cannot encode every path.
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
        """Forwards rank 0's events until every rank has ended. Kills the other ranks after a failure."""
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
            elif event := _said(line, Failed.name):  # shown at the end, when the rank that failed first is known
                failed[rank] = event
            elif rank == 0:
                with contextlib.suppress(OSError):  # the reader has ended, so our stdin closes too and stops rank 0
                    self._out.write(line)
                if not self._decodes and (event := _said(line, DecodeWanted.name)):
                    self._command({"command": "decoded", "sample_id": event.get("sample_id"), "nobody": True})
        return endings

    def forward(self, file: int) -> None:
        """Forwards commands from our stdin to rank 0 until it ends, then closes rank 0's stdin."""
        for chunk in chunks(file):
            self._send(chunk)
        self._close()

    def stop(self, reason: str) -> bool:
        """Asks rank 0 to stop; returns False for a second request, which ends the ranks at once."""
        if self._stop_requested:
            return False
        self._stop_requested = True
        self._command({"command": "stop", "reason": reason})
        self._close()
        return True

    def _command(self, command: dict[str, Any]) -> None:
        self._send(json.dumps(command).encode() + b"\n")

    def _send(self, data: bytes) -> None:
        # os.write, because a signal handler may interrupt a write of the buffered file, which refuses a nested one.
        with contextlib.suppress(OSError, ValueError):
            while data:
                data = data[os.write(self._stdin.fileno(), data) :]

    def _close(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stdin.close()

    @property
    def _stdin(self) -> Any:
        return self._processes[0].stdin

    def end(self) -> list[int]:
        """Kills all running ranks and returns them. Committed saves are complete on disk."""
        # Ranks ignore other signals.
        running = [rank for rank, process in enumerate(self._processes) if process.poll() is None]
        for rank in running:
            self._processes[rank].kill()
        for rank in running:
            self._processes[rank].wait()
        return running


def _said(line: bytes, name: str) -> dict[str, Any]:
    """Returns the event of `line` if its name is `name`, else {}."""
    if f'"{name}"'.encode() not in line:
        return {}
    try:
        event = sentences_back(json.loads(line))
    except ValueError:
        return {}
    return event if event.get("event") == name else {}


def _exit_code(endings: list[_Ending], directory: Path, out: BinaryIO) -> int:
    """Returns rank 0's exit code, or that of the rank that failed first; emits and saves the reason of a failure."""
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
    """Returns the error of a rank that ended without an error event."""
    what = (
        "stopped responding, and was ended after the other ranks had timed out. If that happens again, leave its GPU "
        "out in Split Across GPUs."
        if cause.silent
        else f"ended without an error message (exit code {cause.code}; on Linux -9 often means that memory ran out)."
    )
    return RankLost(failure(f"Rank {cause.rank} of this run {what}", closing=RESUME))


def _distance(ending: _Ending) -> int:
    """Returns the distance of a rank's ending from the cause of the failure: 0 for the cause itself."""
    # A rank with RankLost only reports the loss of another rank, so it is one further from the cause. A rank that the
    # controller killed reports nothing, and is two further.
    if ending.failed.get("kind") == RankLost.__name__:
        return 2
    return int(ending.silent)


def _keep_reason(directory: Path, message: str) -> None:
    """Writes the cause into the run's status, where rank 0 only wrote that another rank was lost."""
    with contextlib.suppress(OSError):
        write_status(directory, replace(read_status(directory), state="failed", reason=shortened(message, 1000)))
