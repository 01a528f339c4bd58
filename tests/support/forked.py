"""Processes forked from one that has done the imports already: real processes, ten times as fast. POSIX only.

Run as a script it is the server. What it imports is the engine with torch (the fixture `server`; the ranks
that a forked controller starts are forked from it in turn, forked_ranks.py), a ComfyUI (`comfy_script`) or diffusers
(`peer_script`).
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).parents[2]
DIFFUSERS = "diffusers"
RunScript = Callable[..., "subprocess.CompletedProcess[str]"]
"""the fixture `run_script`: a file and its words"""
RunCommand = Callable[..., "subprocess.CompletedProcess[str]"]
"""the fixture `wan_core_command`: what is said after `python -m wan_core`"""


def import_engine() -> None:
    """What a run imports, TensorBoard too: 80 of the 350 CPU milliseconds that a tiny run takes without."""
    sys.path[0] = str(ROOT)
    import torch

    import wan_core.__main__
    import wan_core.audit
    import wan_core.session.sample_job
    import wan_core.session.train_job
    import wan_core.trackers  # noqa: F401

    with contextlib.suppress(ImportError):
        import torch.utils.tensorboard
    torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))])


def import_comfyui(tree: str) -> None:
    """As a script of tests/tiny does it; nothing of ours is found beside it."""
    sys.path[0] = str(ROOT / "tests" / "tiny")
    import comfy_job

    comfy_job.import_comfyui(tree)


def import_diffusers() -> None:
    """As a script of tests/tiny does it; nothing of ours is found beside it."""
    sys.path[0] = str(ROOT / "tests" / "tiny")
    import peft
    from diffusers import WanTransformer3DModel  # noqa: F401

    assert peft


def serve(link: socket.socket, library: str = "") -> None:
    """Answer requests, one at a time, until the other end is closed."""
    gc.disable()  # what is imported stays
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # tests that nohup starts have workers that hear it too
    import torch

    torch.set_num_threads(1)
    if not library:
        import torch._dynamo  # as torch itself does where a plan traces a step, which takes each process half a second

        import_engine()
    elif library == DIFFUSERS:
        import_diffusers()
    else:
        import_comfyui(library)
    os.fsync = lambda _: None  # nothing of a test outlives the machine, so nobody waits for its disk
    gc.freeze()  # else the first full collection of every fork copies each page of these libraries: 0.3 s
    gc.enable()
    while True:
        line, pipes, _, _ = socket.recv_fds(link, 1 << 20, 3)
        if not line:
            return
        request = json.loads(line)
        if "wait" in request:
            _, status = os.waitpid(request["wait"], 0)
            answer = {"code": os.waitstatus_to_exitcode(status)}
        else:
            pid = os.fork()
            if pid == 0:
                link.close()
                work(request, pipes, engine=not library)
            for pipe in pipes:
                os.close(pipe)
            answer = {"pid": pid}
        link.sendall(json.dumps(answer).encode())


def work(request: dict[str, Any], pipes: list[int], *, engine: bool) -> NoReturn:
    """Be the process that was asked for."""
    for number, pipe in enumerate(pipes):
        os.dup2(pipe, number)
        os.close(pipe)
    os.environ.update(request["environment"])
    code = 1
    try:
        if request["own_group"]:
            os.setsid()
        if engine:
            from tests.support.forked_ranks import fork_ranks

            fork_ranks()
        exec(request["first"], {})  # noqa: S102
        if request["script"]:
            sys.argv = [request["script"], *request["words"]]
            sys.path[0] = str(Path(request["script"]).parent)
            runpy.run_path(request["script"], run_name="__main__")
            code = 0
        else:
            from wan_core.__main__ import main

            code = int(main(request["words"]))
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


@dataclass
class Worker:
    """One forked `wan_core` command."""

    server: ForkServer
    pid: int
    out: Path
    stdin: int | None = None
    """our end of its standard input, when it has one that can be written to"""

    def events(self) -> list[dict[str, Any]]:
        """What it has said so far; a torn last line is left out."""
        return [json.loads(line) for line in self.out.read_text().split("\n")[:-1]] if self.out.exists() else []

    def log(self) -> str:
        """What it has written to stderr."""
        return Path(f"{self.out}.err").read_text()

    def wait_for(self, name: str, step: int, timeout_s: float = 30) -> None:
        """Until it has reported event `name` of `step` or later."""
        self._wait_for((name,), step, timeout_s)

    def wait_for_a_step(self, timeout_s: float = 30) -> None:
        """Until it has trained one, or ended: a worker that was killed after its last save has none left."""
        self._wait_for(("step", "finished"), 0, timeout_s)

    def _wait_for(self, names: tuple[str, ...], step: int, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not any(e["event"] in names and e.get("step", 0) >= step for e in self.events()):
            assert time.monotonic() < deadline, f"no {names[0]} of step {step}: {self.events()[-3:]}"
            time.sleep(0.002)

    def send(self, command: dict[str, Any]) -> None:
        assert self.stdin is not None
        os.write(self.stdin, json.dumps(command).encode() + b"\n")

    def close_stdin(self) -> None:
        if self.stdin is not None:
            os.close(self.stdin)
            self.stdin = None

    def kill(self) -> int:
        os.kill(self.pid, 9)
        return self.wait()

    def wait(self) -> int:
        """Exit code; negative for a signal."""
        code = self.server.ask({"wait": self.pid})["code"]
        self.close_stdin()
        return code


class ForkServer:
    def __init__(self, library: str = "", environment: Mapping[str, str] | None = None) -> None:
        """`library`: what is imported in place of the engine, DIFFUSERS or the tree of a ComfyUI.

        `environment`: what every process has besides that of this one, from its start on.
        """
        self._link, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno()), *([library] if library else [])],
                pass_fds=[theirs.fileno()],
                env=os.environ | {"OMP_NUM_THREADS": "1"} | dict(environment or {}),
            )

    def ask(self, request: dict[str, Any], pipes: list[int] | None = None) -> dict[str, Any]:
        socket.send_fds(self._link, [json.dumps(request).encode()], pipes or [])
        return json.loads(self._link.recv(1 << 16))

    def start(
        self,
        words: list[str],
        out: Path,
        *,
        first: str = "",
        script: str = "",
        stdin: bool = False,
        stdout: int | None = None,
        own_group: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> Worker:
        """Start a command; it writes to `out` and `<out>.err`.

        `first` is code that the process runs before the command, `script` a file to run in place of `wan_core`.
        `stdout` is a file descriptor to take the place of `out`. With `stdin` the worker can be written to, else there
        is nothing to read. `own_group` makes it the leader of a process group, as a terminal does.
        """
        request = {"words": words, "first": first, "script": script, "own_group": own_group}
        request["environment"] = dict(environment or {})
        with contextlib.ExitStack() as open_here:
            reading, writing = os.pipe() if stdin else (os.open(os.devnull, os.O_RDONLY), None)
            open_here.callback(os.close, reading)
            pipes = [reading]
            for path in (out, f"{out}.err"):
                pipes.append(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644))
                open_here.callback(os.close, pipes[-1])
            if stdout is not None:
                pipes[1] = stdout
            pid = self.ask(request, pipes)["pid"]
        return Worker(self, pid, out, writing)

    def run(self, script: Path, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a script to its end."""
        return self._to_its_end([str(script), *words], script=str(script))

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a `wan_core` command to its end."""
        return self._to_its_end(["wan_core", *words])

    def _to_its_end(self, line: list[str], *, script: str = "") -> subprocess.CompletedProcess[str]:
        with tempfile.TemporaryDirectory() as folder:
            worker = self.start(line[1:], Path(folder) / "out", script=script)
            code = worker.wait()
            return subprocess.CompletedProcess(line, code, worker.out.read_text(), worker.log())

    def close(self) -> None:
        self._link.close()
        self._process.wait(timeout=30)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), *sys.argv[2:])
