"""A process of the engine as the system sees it: its command line and environment, its start, and its end by force."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

PACK = Path(__file__).resolve().parents[2]
LAUNCH = PACK / "wan_core" / "launch.py"


def engine_command(*arguments: str) -> list[str]:
    """The command line of an engine process, with this ComfyUI's own Python."""
    return [sys.executable, "-X", "utf8", str(LAUNCH), *arguments]


_FLAGS = ("CREATE_NEW_PROCESS_GROUP", "CREATE_NO_WINDOW")
_OWN_GROUP = sum(getattr(subprocess, name, 0) for name in _FLAGS)
"""of Windows; elsewhere a new session. Ctrl-C in ComfyUI's terminal must not tear a save, and a stop must reach
everything below the process."""

_ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""where torch reads the settings of its CUDA allocator; the second name is older and still read by every version"""
_PYTHONPATH = "PYTHONPATH"
_ASYNC = re.compile(r"(^|,)\s*backend\s*:\s*cudaMallocAsync\s*(?=,|$)")


def worker_environment(outside: Mapping[str, str]) -> dict[str, str]:
    """Returns `outside` for an engine process: with the user's own allocator settings, without ComfyUI's.

    ComfyUI adds `backend:cudaMallocAsync` for itself, which suits sampling and not training. PYTHONPATH means what it
    means here, although the process works in the folder of a run: Python looks there before our code can say no.
    """
    found = dict(outside)
    for name in _ALLOCATOR:
        kept = _ASYNC.sub("", found.pop(name, "")).strip(" ,")
        if kept:
            found[name] = kept
    if folders := found.pop(_PYTHONPATH, ""):
        found[_PYTHONPATH] = os.pathsep.join(os.path.abspath(path) for path in folders.split(os.pathsep) if path)
    if os.name == "nt":  # else a compiler is looked for in that folder first
        found["NoDefaultCurrentDirectoryInExePath"] = "1"
    return found


def start_process(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], stderr: IO[bytes]
) -> subprocess.Popen[bytes]:
    """Start a process of a group of its own in `folder`, with pipes to its stdin and from its stdout."""
    # Pipes of Popen are not inherited by other children, so the process sees its stdin end when we die.
    return subprocess.Popen(
        list(command),
        cwd=folder,
        env=dict(environment),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        start_new_session=os.name != "nt",
        creationflags=_OWN_GROUP,
    )


def signal_tree(process: subprocess.Popen[bytes], *, force: bool) -> None:
    if os.name == "nt":
        # A process without a console window hears no signal there: without /F taskkill would change nothing, and after
        # the command the next means is the last one.
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
