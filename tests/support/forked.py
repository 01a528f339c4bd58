"""Workers forked from a process that has already imported torch and peft: real processes, ten times as fast.

Run as a script it is the server; tests use `ForkServer`. POSIX only.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def serve() -> None:
    sys.path.insert(0, str(ROOT))
    import torch

    torch.set_num_threads(1)
    import peft  # noqa: F401

    import wan_core.__main__ as command_line
    import wan_core.run.sample_job  # noqa: F401

    torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))])
    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            _, status = os.waitpid(request["wait"], 0)
            print(json.dumps({"code": os.waitstatus_to_exitcode(status)}), flush=True)  # noqa: T201
            continue
        pid = os.fork()
        if pid == 0:
            out = os.open(request["out"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            err = os.open(request["out"] + ".err", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(out, 1)
            os.dup2(err, 2)
            code = 1
            try:
                if "troubles" in request:
                    from tests.support.troubles import install

                    install(request["troubles"])
                code = int(command_line.main(request["words"]))
            finally:
                os._exit(code)
        print(json.dumps({"pid": pid}), flush=True)  # noqa: T201


@dataclass
class Worker:
    """One forked `wan_core` command."""

    server: ForkServer
    pid: int
    out: Path

    def events(self) -> list[dict[str, Any]]:
        """What it has said so far; a torn last line is left out."""
        return [json.loads(line) for line in self.out.read_text().split("\n")[:-1]] if self.out.exists() else []

    def wait_for(self, name: str, step: int, timeout_s: float = 30) -> None:
        """Until it has reported event `name` of `step` or later."""
        deadline = time.monotonic() + timeout_s
        while not any(e["event"] == name and e.get("step", 0) >= step for e in self.events()):
            assert time.monotonic() < deadline, f"no {name} of step {step}: {self.events()[-3:]}"
            time.sleep(0.002)

    def kill(self) -> int:
        os.kill(self.pid, 9)
        return self.wait()

    def wait(self) -> int:
        """Exit code; negative for a signal."""
        return self.server.ask({"wait": self.pid})["code"]


class ForkServer:
    def __init__(self) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def start(self, words: list[str], out: Path, troubles: int | None = None) -> Worker:
        """`troubles`: with steps that are not finite, and so many writes of a save that find no room."""
        more = {} if troubles is None else {"troubles": troubles}
        return Worker(self, self.ask({"words": words, "out": str(out), **more})["pid"], out)

    def close(self) -> None:
        self._process.communicate(timeout=30)


if __name__ == "__main__":
    serve()
