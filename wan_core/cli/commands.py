"""The command line: `python -m wan_core COMMAND ...`, and the same through launch.py.

JSON on stdout, sentences on stderr. Exit codes: 0 done, 3 stopped with state, 4 does not fit, 5 bad data or settings,
1 a bug. RUN is a run directory or its run.json.
"""

from __future__ import annotations

import argparse
import logging
import sys
import traceback
from pathlib import Path
from typing import NoReturn

from ..errors import ConfigError, ExitCode, OutOfMemory, Stopped, WanTrainerError, host_memory_ran_out
from ..packages import check_versions
from ..words import plain
from .cache import add_cache_commands
from .files import add_file_commands
from .maxdiffusion import add_tfrecord_commands
from .migrate import add_import_command
from .output import Command, disk_sentence, emitter, failed, private_stdout, quieten_libraries
from .runs import add_run_commands

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    out = private_stdout()
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    quieten_libraries()
    emit = emitter(out)
    try:
        check_versions()
        options = _parser().parse_args(arguments)
        return options.run(options, emit, out)
    except KeyboardInterrupt:
        print("Ended at once; saved steps stand.", file=sys.stderr)
        return ExitCode.STOPPED
    except Stopped as stop:
        print(stop.reason, file=sys.stderr)
        return ExitCode.STOPPED
    except WanTrainerError as error:
        return failed(emit, str(error), type(error).__name__, error.exit_code)
    except OSError as error:
        return failed(emit, disk_sentence(error), "OSError", ExitCode.BAD_INPUT)
    except Exception as error:
        if host_memory_ran_out(error):
            return failed(emit, str(OutOfMemory.of_host()), "OutOfMemory", ExitCode.DOES_NOT_FIT)
        print(*map(plain, traceback.format_exc().splitlines()), sep="\n", file=sys.stderr)
        message = f"A bug: {type(error).__name__}: {error}. Please report it with the log."
        return failed(emit, message, type(error).__name__, ExitCode.BUG)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """A wrong command line is refused like any other bad input."""
        raise ConfigError(f"{message}. {self.format_usage().strip()}")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="wan_core", description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, run: Command, text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(run=run)
        sub.add_argument(
            "--roots", type=Path, help="JSON file with the folders that root:relative names are looked up in"
        )
        return sub

    add_file_commands(command)
    add_import_command(command)
    add_run_commands(command)
    text = "look after a cache folder: count, check, pack, make room; sets to and from TFRecords"
    actions = commands.add_parser("cache", help=text, description=text)
    actions = actions.add_subparsers(dest="action", required=True, metavar="ACTION")
    add_cache_commands(actions)
    add_tfrecord_commands(actions)
    return parser
