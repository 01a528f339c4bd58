"""Ranks as forks of their controller: the same pipes, environment, folder and exit codes, without a new interpreter."""

from __future__ import annotations

import os
import subprocess
import traceback
from typing import Any, NoReturn


class _Forked(subprocess.Popen):  # type: ignore[type-arg]
    """`[python, "-X", "utf8", launch.py, "train" ...]` as a fork of this process; any other command as it is."""

    def _execute_child(self, args: Any, *given: Any) -> None:
        if isinstance(args, list) and str(args[3:4]).endswith("launch.py']") and args[4] in ("train", "resume"):
            folder, environment = given[4:6]
            pipes = given[9:15]  # stdin, stdout, stderr: for each what is read from and what is written to
            self.pid = os.fork()
            if self.pid == 0:
                _work(args[4:], folder, environment, (pipes[0], pipes[3], pipes[5]))
            self._child_created = True
            self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]
        else:
            super()._execute_child(args, *given)  # type: ignore[misc]


def _work(words: list[str], folder: str, environment: dict[str, str], pipes: tuple[int, ...]) -> NoReturn:
    """Be the rank."""
    code = 1
    try:
        for number, pipe in enumerate(pipes):
            if pipe != -1:
                os.dup2(pipe, number)
        os.closerange(3, 256)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        from wan_core.__main__ import main

        code = int(main(words))
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def fork_ranks() -> None:
    """From now on and for good, in a process of its own."""
    subprocess.Popen = _Forked  # type: ignore[misc, assignment]
