"""Engine workers of a ComfyUI under test, forked from a process that has imported torch: the same code, the
same pipes, signals and exit codes, without the five seconds of imports each. POSIX only.

    with PreforkedEngine(folder) as engine:
        ComfyServer(base, env=engine.environment)    # its test pack makes engine.python the server's sys.executable
        engine.real.touch()                          # workers from now on are started as for a user; unlink to end
        engine.slow.touch()                          # workers from now on wait before each step; unlink to end

A server whose environment has FIRST gets workers that run this code before anything else.

Run as a script it is the process that forks. `engine_door.py` is what the server starts.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
DOOR = Path(__file__).with_name("engine_door.py")
FIRST = "TINY_ENGINE_FIRST"
WAIT_S = 0.1
"""before each step of a slow worker"""


class PreforkedEngine:
    """The forking process, and a stand-in for the Python that ComfyUI starts its workers with."""

    def __init__(self, folder: Path) -> None:
        # A socket's path has room for some 100 characters; a test's folder may be deeper.
        self._short = tempfile.TemporaryDirectory(prefix="wt")
        place = Path(self._short.name) / "door"
        self.real, self.slow = Path(f"{place}.real"), Path(f"{place}.slow")
        self.python = folder / "python"
        door = shlex.join([sys.executable, "-I", "-S", str(DOOR), str(place), sys.executable])
        self.python.write_text(f'#!/bin/sh\nexec {door} "$@"\n')
        self.python.chmod(0o755)
        self.environment = {"TINY_ENGINE_PYTHON": str(self.python)}
        self._process = subprocess.Popen([sys.executable, "-X", "utf8", __file__, str(place)], stdin=subprocess.PIPE)

    def __enter__(self) -> PreforkedEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=60)
        self._short.cleanup()


def serve(place: str) -> None:
    """Fork a worker for every caller, until stdin ends."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(place)
    listener.listen(16)  # a caller that comes before the imports are done waits here
    sys.path[:] = [entry for entry in sys.path if Path(entry or os.curdir).resolve() != DOOR.parent]
    sys.path.insert(0, str(ROOT))
    gc.disable()  # what is imported stays
    from tests.support.forked import import_engine

    import_engine()
    os.fsync = lambda _: None  # nothing of a test outlives the machine, so nobody waits for its disk
    gc.freeze()  # else the first full collection of every fork copies each page of these libraries: 0.3 s
    gc.enable()
    signal.signal(signal.SIGCHLD, lambda *_: reap())  # ignored, their CPU seconds would not be counted
    while listener in select.select([listener, sys.stdin], [], [])[0]:
        caller, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            look_after(caller)
        caller.close()


def reap() -> None:
    """Collect the workers that have ended."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def look_after(caller: socket.socket) -> None:
    """Fork the worker, pass signals on to it and its exit code back; it dies with its caller. Never returns."""
    _, pipes, _, _ = socket.recv_fds(caller, 1, 3)
    lines = caller.makefile("r", encoding="utf-8")
    request = json.loads(lines.readline())
    worker = os.fork()
    if worker == 0:
        os.setsid()
        lines.close()
        caller.close()
        work(request, pipes)
    for pipe in pipes:
        os.close(pipe)

    def pass_on() -> None:
        for line in lines:
            os.kill(worker, int(line))
        with contextlib.suppress(ProcessLookupError):
            os.killpg(worker, signal.SIGKILL)

    threading.Thread(target=pass_on, daemon=True).start()
    _, status = os.waitpid(worker, 0)
    with contextlib.suppress(OSError):
        caller.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))
    os._exit(0)


def work(request: dict[str, Any], pipes: list[int]) -> None:
    """Be the process the caller asked for. Never returns."""
    code = 1
    try:
        for number, pipe in enumerate(pipes):
            os.dup2(pipe, number)
            os.close(pipe)
        os.chdir(request["folder"])
        os.environ.clear()
        os.environ.update(request["environment"])
        exec(os.environ.get(FIRST, ""), {})  # noqa: S102
        if Path(f"{sys.argv[1]}.slow").exists():
            wait_before_each_step()
        from wan_core.__main__ import main

        code = int(main(request["words"]))
    finally:
        sys.stderr.flush()
        os._exit(code)


def wait_before_each_step() -> None:
    """For a test that watches a run: at its own pace it would take a core meanwhile, and give pages points to draw."""
    from wan_core.train import Trainer

    at_once = Trainer._train_step

    def later(trainer: Trainer, step: int) -> None:
        time.sleep(WAIT_S)
        at_once(trainer, step)

    Trainer._train_step = later


if __name__ == "__main__":
    serve(sys.argv[1])
