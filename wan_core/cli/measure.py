"""`wan_core measure`: time and memory of a training step on the user's card, for models with published figures."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from ..errors import ConfigError, ExitCode
from ..events import Emit
from ..packages import first_import
from ..words import plain
from .output import print_json


def add_measure_command(command: Callable[..., argparse.ArgumentParser]) -> None:
    text = "train the models that others publish figures of for a few steps each, on random weights, and time it"
    measure = command("measure", _measure, text)
    measure.add_argument("--minutes", type=float, default=10.0, help="nothing is begun that would not end by then")
    measure.add_argument("--rows", default="", metavar="N[,N]", help="only these, by their numbers; default: all")
    measure.add_argument("--list", action="store_true", help="say which rows there are, and measure nothing")
    measure.add_argument("--out", type=Path, help="folder for the results; default: where the constants are kept")
    measure.add_argument("--trace", action="store_true", help="a torch.profiler trace of one step of each row")
    measure.add_argument(
        "--snapshot", action="store_true", help="a memory snapshot of each row, for pytorch.org/memory_viz"
    )
    measure.add_argument("--tiny", action="store_true", help="tiny shapes, on a CPU too: does everything run")
    measure.add_argument("--one-process", action="store_true", help="not each row in a process of its own")


def _measure(options: argparse.Namespace, _emit: Emit, out: BinaryIO) -> int:
    with first_import("torch"):
        from ..measure import DONE, ERROR, ROWS, Measurement, names_of, rows_numbered, table
    from ..plan import state_file

    if options.list:
        out.write((names_of(ROWS) + "\n").encode())
        return ExitCode.DONE
    if not 0 < options.minutes < 10_000:
        raise ConfigError(f"--minutes {options.minutes} is no time. Set it to a positive number.")
    rows, folder = rows_numbered(options.rows), (options.out or state_file().parent).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    measurement = Measurement(
        rows,
        options.minutes,
        folder,
        tell=lambda text: print(plain(text), file=sys.stderr, flush=True),
        tiny=options.tiny,
        trace=options.trace,
        snapshot=options.snapshot,
        apart=not options.one_process,
    )
    try:
        measurement.run()
        code = ExitCode.DONE
    except KeyboardInterrupt:
        code = ExitCode.STOPPED
    said = measurement.said
    if not said:
        return code
    if out.isatty():
        out.write((table(said) + "\n").encode())
    else:
        print_json(out, said)
    if said["rows"]:
        print(f"{measurement.file.with_suffix('.md')} is a text to paste into an issue.", file=sys.stderr)
    states = {row["status"] for row in said["rows"]}
    return ExitCode.BUG if ERROR in states and DONE not in states else code
