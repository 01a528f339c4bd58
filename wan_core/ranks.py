"""The controller of a run with several ranks: it owns the pipes, starts torchrun, and passes lines both ways.

Only rank 0 reads commands and writes events (torchrun hands its own stdin and stdout down), so the protocol is that of
a single worker. torchrun turns every exit code but 0 into a crash, so the code comes from the last event.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import BinaryIO

from .control import stop_on_signals
from .errors import ExitCode

__all__ = ["start_ranks"]

_TORCHRUN_PATIENCE_S = 40.0
"""torchrun itself gives its ranks 30 s after the signal"""


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
    command += ["--controlled"]
    if options.max_steps:
        command += ["--max-steps", str(options.max_steps)]
    if options.embed_workflow:
        command += ["--embed-workflow"]
    if options.cache_seconds:
        command += ["--cache-seconds", str(options.cache_seconds)]
    environment = os.environ | {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    # Rank 0 always listens to us: a signal to this process becomes a command, and our death the end of its stdin.
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as torchrun:
        try:
            stop_on_signals(lambda reason: _send_stop(torchrun, reason))
            if options.controlled:
                threading.Thread(target=_forward, args=(torchrun,), daemon=True, name="commands").start()
            last = b""
            assert torchrun.stdout is not None
            for line in torchrun.stdout:
                out.write(line)
                last = line if line.startswith(b"{") else last
            torchrun.wait()
        finally:
            if torchrun.poll() is None:  # we were interrupted a second time
                torchrun.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    torchrun.wait(_TORCHRUN_PATIENCE_S)
                torchrun.kill()
    return _exit_code(last, torchrun.returncode)


def _send_stop(torchrun: subprocess.Popen[bytes], reason: str) -> bool:
    """Ask rank 0 to stop; False when it was asked before, so that a second signal ends at once."""
    assert torchrun.stdin is not None
    if torchrun.stdin.closed:
        return False
    with contextlib.suppress(OSError, ValueError):
        torchrun.stdin.write(json.dumps({"command": "stop", "reason": reason}).encode() + b"\n")
        torchrun.stdin.close()
    return True


def _forward(torchrun: subprocess.Popen[bytes]) -> None:
    """Commands from our stdin to rank 0; the end of ours is the end of theirs."""
    target = torchrun.stdin
    assert target is not None
    with os.fdopen(os.dup(0), "rb", buffering=0) as source, contextlib.suppress(OSError, ValueError), target:
        while chunk := source.read(4096):
            target.write(chunk)
            target.flush()


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
