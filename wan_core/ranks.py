"""The controller of a run with several ranks: it owns the pipes, starts torchrun, and passes lines both ways.

Only rank 0 reads commands and writes events (torchrun hands its own stdin and stdout down), so the protocol is that of
a single worker. torchrun turns every exit code but 0 into a crash, so the code comes from the last event.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import BinaryIO

from .errors import ExitCode

__all__ = ["start_ranks"]


def start_ranks(directory: Path, ranks: int, options: argparse.Namespace, out: BinaryIO) -> int:
    """Train with `ranks` processes under torchrun; returns the exit code a single worker would return."""
    launch = Path(__file__).with_name("launch.py")
    command = [
        sys.executable, "-X", "utf8", "-m", "torch.distributed.run",
        "--nnodes=1", f"--nproc-per-node={ranks}", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0",
        str(launch), options.command, str(directory),
    ]  # fmt: skip
    if options.roots:
        command += ["--roots", str(options.roots)]
    if options.controlled:
        command += ["--controlled"]
    if options.max_steps:
        command += ["--max-steps", str(options.max_steps)]
    stdin = subprocess.PIPE if options.controlled else subprocess.DEVNULL
    environment = os.environ | {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    with subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, env=environment) as torchrun:
        if torchrun.stdin is not None:
            threading.Thread(target=_forward, args=(torchrun.stdin,), daemon=True, name="commands").start()
        last = b""
        assert torchrun.stdout is not None
        for line in torchrun.stdout:
            out.write(line)
            last = line if line.startswith(b"{") else last
    return _exit_code(last, torchrun.returncode)


def _forward(target: BinaryIO) -> None:
    """Commands from our stdin to rank 0; the end of ours is the end of theirs."""
    with os.fdopen(os.dup(0), "rb", buffering=0) as source, target:
        while chunk := source.read(4096):
            try:
                target.write(chunk)
                target.flush()
            except OSError:
                return


def _exit_code(last_line: bytes, torchrun_code: int) -> int:
    try:
        event = json.loads(last_line)
    except ValueError:
        event = {}
    if event.get("event") == "failed":
        return int(event["exit_code"])
    if event.get("event") == "finished" and torchrun_code == 0:
        return ExitCode.STOPPED if event["state"] == "stopped" else ExitCode.DONE
    return ExitCode.BUG
