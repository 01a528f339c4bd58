"""`wan_core import`: another trainer's job as a graph, with an account of its settings."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO

from ..errors import ConfigError, ExitCode
from ..events import Emit
from ..words import plain
from .output import print_json


def add_import_command(command: Callable[..., argparse.ArgumentParser]) -> None:
    text = "make a graph of the settings of musubi-tuner, diffusion-pipe, SimpleTuner or ai-toolkit"
    sub = command("import", _import, text)
    sub.add_argument("file", type=Path, help="its TOML, JSON or YAML, or a text file with its command line")
    sub.add_argument("--out", type=Path, help="workflow for the canvas; default: prints the graph of the queue API")
    sub.add_argument("--api-out", type=Path, metavar="FILE", help="the graph of the queue API, for head-less use")
    sub.add_argument("--clips", type=int, default=0, help="clips of an epoch, where the dataset is not here to count")
    sub.add_argument("--look-in", type=Path, action="append", default=[], metavar="FOLDER", help="for files it names")


def tell_account(account: Mapping[str, list[str]]) -> None:
    """Prints the account of another trainer's settings."""
    for title, sentences in account.items():
        print(f"{title}:", *(f"  {plain(sentence)}" for sentence in sentences), sep="\n", file=sys.stderr)


def _import(options: argparse.Namespace, _emit: Emit, out: BinaryIO) -> int:
    from ..files import atomic_write_json
    from ..migrate import api_graph, canvas_graph, read_job

    if not options.file.is_file():
        raise ConfigError(f"{options.file} is not a file. Name the settings of the other trainer.")
    if options.clips < 0:
        raise ConfigError(f"--clips is {options.clips}. Set it to the clips of an epoch, repeats included.")
    job = read_job(options.file, folders=tuple(options.look_in), clips=options.clips)
    written: list[str] = []
    for path, graph in ((options.out, canvas_graph), (options.api_out, api_graph)):
        if path is not None:
            atomic_write_json(path, graph(job))
            written.append(path.name)
    tell_account(job.account())
    if written:
        print_json(out, {"version": 1, "trainer": job.trainer, "written": written, "account": dict(job.account())})
    else:
        print_json(out, api_graph(job))
    return ExitCode.DONE
