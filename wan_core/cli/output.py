"""Output of every command: JSON on stdout, text on stderr, one line per error."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import ExitCode
from ..events import Emit, Event, Failed, to_line
from ..files import FileError, Roots, open_append
from ..run_lines import RunLines
from ..words import logger, plain

_log = logger("wan_trainer")

Command = Callable[[argparse.Namespace, Emit, BinaryIO], int]
"""(options, events, JSON output) -> exit code"""


def private_stdout() -> BinaryIO:
    """Returns a copy of stdout for JSON, and redirects file descriptor 1 to stderr, so that output of libraries cannot
    mix with the JSON."""
    sys.stdout.flush()
    private = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    return private


def emitter(out: BinaryIO) -> Emit:
    """Returns a function that writes events as JSON lines, and some as text to the log."""
    # On a terminal, the controller of the ranks shows the log.
    lines, logs = RunLines(), "LOCAL_RANK" not in os.environ or not sys.stderr.isatty()

    def emit(event: Event) -> None:
        if logs and (line := lines.line(event)):
            _log.info("%s", line)
        with contextlib.suppress(OSError):  # the reader has ended, so stdin closes too and stops the worker
            out.write(to_line(event).encode("ascii"))

    return emit


@contextlib.contextmanager
def kept_log(directory: Path, emit: Emit) -> Iterator[Emit]:
    """Yields an `emit` that also writes events and the final error to the run's log.txt, as ComfyUI's runs do.

    A log that cannot be written does not stop the run.
    """
    lines = RunLines()

    def write(kind: str, line: str) -> None:
        with contextlib.suppress(OSError, FileError), open_append(directory / "log.txt") as log:
            log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {kind} wan_trainer: {plain(line)}\n".encode())

    def emit_and_log(event: Event) -> None:
        if line := lines.line(event):
            write("INFO", line)
        emit(event)

    try:
        yield emit_and_log
    except Exception as error:
        write("ERROR", str(error) or type(error).__name__)
        raise


def print_json(out: BinaryIO, data: Any) -> None:
    out.write((json.dumps(data, ensure_ascii=True, indent=2) + "\n").encode("ascii"))


def done(out: BinaryIO, facts: dict[str, Any]) -> int:
    """Prints the result of a command; returns its exit code."""
    print_json(out, {"version": 1, **facts})
    return ExitCode.DONE


def failed(emit: Emit, message: str, kind: str, code: ExitCode) -> int:
    print(plain(message), file=sys.stderr)
    emit(Failed(message=message, kind=kind, exit_code=int(code)))
    return int(code)


def quieten_libraries() -> None:
    """Silences library messages that no user can act on."""
    logging.getLogger("torchao").setLevel(logging.ERROR)  # this library warns about CUDA libraries on every CPU
    # This warning is for torchao's authors. A filter, because importing torch resets log levels.
    logging.getLogger("torch.utils._pytree").addFilter(lambda record: "register_constant" not in record.getMessage())


def roots_of(options: argparse.Namespace) -> Roots:
    """Returns the roots from --roots, else from the roots.json that `new` writes next to the run, else the usual
    folders."""
    if options.roots:
        return Roots.read(options.roots)
    run: Path | None = getattr(options, "run_path", None)
    if run is None:
        return Roots({})
    runs = run_directory(run).parent
    beside = runs / "roots.json"
    return Roots.read(beside) if beside.is_file() else Roots(usual_folders(runs))


def usual_folders(runs: Path) -> dict[str, tuple[str, ...]]:
    """Returns the default roots: folders next to the runs, and of the ComfyUI whose output folder has the runs."""
    models = runs.parent.parent / "models"
    names = ("diffusion_models", "unet") if runs.parent.name == "output" else ()
    folders = tuple(str(models / name) for name in names if (models / name).is_dir())
    loras = (str(models / "loras"),) if folders and (models / "loras").is_dir() else ()
    return {"cache": (str(runs / "_cache"),), "loras": (*loras, str(runs)), "diffusion_models": folders}


def run_directory(path: Path) -> Path:
    path = path.resolve()
    return path.parent if path.name == "run.json" else path
