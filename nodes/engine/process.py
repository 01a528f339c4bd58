"""The operating system's side of an engine process: command line, environment, start, kill, host memory, log file."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from ...wan_core.children import OWN_GROUP
from ...wan_core.files import FileError, open_regular
from ...wan_core.packages import ALLOCATOR
from ...wan_core.placement.host import host_bytes, host_total
from ...wan_core.words import filled

PACK = Path(__file__).resolve().parents[2]
LAUNCH = PACK / "wan_core" / "launch.py"


def engine_command(*arguments: str) -> list[str]:
    """Returns the command line of an engine process, with this ComfyUI's own Python."""
    return [sys.executable, "-X", "utf8", str(LAUNCH), *arguments]


_PYTHONPATH = "PYTHONPATH"
_ASYNC = re.compile(r"(^|,)\s*backend\s*:\s*cudaMallocAsync\s*(?=,|$)")


def worker_environment(outside: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment `outside` for an engine process, without ComfyUI's allocator settings."""
    found = dict(outside)
    for name in ALLOCATOR:  # ComfyUI adds backend:cudaMallocAsync, which suits sampling but not training
        kept = _ASYNC.sub("", found.pop(name, "")).strip(" ,")
        if kept:
            found[name] = kept
    # Absolute paths, because the process runs in the folder of a run, and Python uses PYTHONPATH before our code.
    if folders := found.pop(_PYTHONPATH, ""):
        found[_PYTHONPATH] = os.pathsep.join(os.path.abspath(path) for path in folders.split(os.pathsep) if path)
    if os.name == "nt":  # Otherwise Windows would search the run's folder first, for example for a compiler.
        found["NoDefaultCurrentDirectoryInExePath"] = "1"
    return found


def start_process(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], stderr: IO[bytes]
) -> subprocess.Popen[bytes]:
    """Starts a process in `folder` and a group of its own, with pipes to its stdin and from its stdout."""
    # Other children do not inherit Popen's pipes, so stdin of the process closes when this process dies.
    return subprocess.Popen(
        list(command),
        cwd=folder,
        env=dict(environment),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        start_new_session=os.name != "nt",
        creationflags=OWN_GROUP,
    )


def signal_tree(process: subprocess.Popen[bytes], *, force: bool) -> None:
    """Terminates a process and its children; kills them with `force`, and always on Windows."""
    if os.name == "nt":
        # On Windows, a process without a console window receives no signal, so only taskkill with /F ends it.
        subprocess.run(
            ["taskkill", "/F", "/T", "/PID", str(process.pid)],
            capture_output=True,
            check=False,
            creationflags=subprocess.CREATE_NO_WINDOW,  # type: ignore[attr-defined]
        )
        with contextlib.suppress(OSError):
            process.kill()
    else:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL if force else signal.SIGTERM)


NEXT_LOG = "log.next.txt"
"""log of processes that started while another program held the run's log.txt"""
_NOISE = re.compile(r"^[WI]\d{4} \d\d:\d\d:|Warning: |^\s*warnings\.warn\(")


def log_tail(log: Path, most: int, start: int = 0) -> str:
    """Returns the complete lines among the last `most` bytes after byte `start`; "" for a missing log."""
    try:
        with open_regular(log, follow_links=False) as file:
            end = file.seek(0, os.SEEK_END)
            begins = max(start, end - most, 0)
            file.seek(begins)
            read = file.read(most)
            if begins > start:  # The first line is probably incomplete.
                read = read.partition(b"\n")[2] or read
            return read.decode("utf-8", "replace")
    except (OSError, FileError):
        return ""


def without_noise(text: str) -> list[str]:
    """Returns the lines of a log except warnings of libraries."""
    return [line for line in text.splitlines() if not _NOISE.search(line)]


_EVERY_S = 2.0
_GIB = 1 << 30
_SHORT = 0.1
"""free share of host memory below which the system may have killed the process"""


class HostWatch:
    """Samples the host memory of a process tree, because a killed process cannot report it."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._next = 0.0
        self.in_words = ""
        """last measurement, in words"""
        self.was_full = True
        """whether host memory was nearly full at the last measurement; True before the first"""
        self.look()

    def look(self) -> None:
        """Measure, at most every two seconds."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _EVERY_S
        with contextlib.suppress(Exception):  # the process has ended, or psutil does not support this system
            import psutil

            process = psutil.Process(self._pid)
            held = sum(one.memory_info().rss for one in (process, *process.children(recursive=True)))
            free, total = host_bytes(), host_total()
            if held and free is not None and total:
                self.was_full = free < _SHORT * total
                self.in_words = filled(
                    "it used {held} GiB, and {free} were free at the last measurement",
                    held=f"{held / _GIB:.1f}",
                    free=f"{free / _GIB:.1f} of {total / _GIB:.1f} GiB",
                )
