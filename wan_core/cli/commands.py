"""The command line: `python wan_core/launch.py COMMAND ...`, or `python -m wan_core` where it is importable."""

from __future__ import annotations

import argparse
import logging
import os
import platform
import sys
import time
import traceback
from collections.abc import MutableMapping
from pathlib import Path
from typing import NoReturn

from ..errors import ConfigError, ExitCode, OutOfMemory, Stopped, WanTrainerError, host_memory_ran_out
from ..packages import ALLOCATOR, check_versions, version_of
from ..words import plain
from .cache import add_cache_commands
from .encode import add_encode_command
from .files import add_file_commands
from .new import add_import_command
from .output import Command, emitter, failed, private_stdout, quieten_libraries
from .progress import Terminal
from .runs import add_run_commands
from .send import add_send_command


def main(arguments: list[str] | None = None) -> int:
    """Runs one command; returns the exit code."""
    out, began = private_stdout(), time.monotonic()
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    quieten_libraries()
    emit = Terminal(out) if out.isatty() else emitter(out)
    try:
        check_versions()
        let_segments_grow(os.environ, torch=version_of("torch"))
        words = sys.argv[1:] if arguments is None else arguments
        options = _parser().parse_args(words, argparse.Namespace(began=began))
        return options.run(options, emit, out)
    except KeyboardInterrupt:
        print("Stopped immediately; saved steps are kept.", file=sys.stderr)
        return ExitCode.STOPPED
    except Stopped as stop:
        print(stop.reason, file=sys.stderr)
        return ExitCode.STOPPED
    except WanTrainerError as error:
        return failed(emit, str(error), type(error).__name__, error.exit_code)
    except OSError as error:
        from ..job import disk_sentence  # imported here, because it imports the engine

        return failed(emit, disk_sentence(error), "OSError", ExitCode.BAD_INPUT)
    except Exception as error:
        if host_memory_ran_out(error):
            return failed(emit, str(OutOfMemory.of_host()), "OutOfMemory", ExitCode.DOES_NOT_FIT)
        print(*map(plain, traceback.format_exc().splitlines()), sep="\n", file=sys.stderr)
        message = f"A bug: {type(error).__name__}: {error}. Please report it with the log."
        return failed(emit, message, type(error).__name__, ExitCode.BUG)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        # argparse's errors are reported like other bad input: as JSON, with exit code 5.
        raise ConfigError(f"{message}. {' '.join(self.format_usage().split())}")


_EXIT_CODES = """exit codes: 0 done; 3 stopped, with its state saved; 4 does not fit into memory; 5 bad data or
settings; 1 a bug. JSON comes on stdout, sentences on stderr; training on a terminal shows a progress line."""
_EXAMPLES = {
    "check": ("check",),
    "inspect": ("inspect models/wan2.1_t2v_1.3B_fp16.safetensors",),
    "scan": ("scan input/my_clips --num-frames 33", "scan clips.jsonl --column path=video --column caption=text"),
    "import": ("import my_training.toml --out my_training.json", "import train.sh --clips 40 --api-out queue_me.json"),
    "new": (
        "new my_lora --model models/wan2.1_t2v_1.3B_fp16.safetensors --data 3fa9 --set rank=32",
        "new my_lora_hot --like output/wan_trainer/my_lora --set learning_rate=5e-4",
    ),
    "plan": (
        "plan output/wan_trainer/my_lora",
        "plan --model models/wan.safetensors --size 832x480x33 --card 16",
        'plan --model models/wan.safetensors --preset "16 GB, good"',
    ),
    "train": ("train output/wan_trainer/my_lora", "train output/wan_trainer/my_lora --set steps=3000 --max-steps 500"),
    "resume": ("resume output/wan_trainer/my_lora",),
    "sample": ("sample output/wan_trainer/my_lora --job clips.json",),
    "audit": ("audit output/wan_trainer/my_lora --clips 2",),
    "ema": ("ema output/wan_trainer/my_lora --width 0.1",),
    "send": ("send output/wan_trainer/my_lora",),
    "export": ("export output/wan_trainer/my_lora --step 1500 --to my_lora.safetensors",),
}
"""command -> usage, the most common first"""


def _examples(*lines: str) -> str:
    return "\n".join(["examples:", *(f"  python wan_core/launch.py {line}" for line in lines)])


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="wan_core",
        description="Train LoRAs for Wan video models from the command line: `python wan_core/launch.py COMMAND ...`.",
        epilog=f"{_EXIT_CODES}\n\n{_examples(*(line for lines in _EXAMPLES.values() for line in lines[:1]))}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, run: Command, text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(
            name,
            help=text,
            description=text,
            epilog=_examples(*_EXAMPLES.get(name, ())),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        sub.set_defaults(run=run)
        sub.add_argument(
            "--roots", type=Path, help="JSON file with the folder of each root in names such as root:relative"
        )
        return sub

    add_file_commands(command)
    add_import_command(command)
    add_run_commands(command)
    add_send_command(command)
    text = "encode a graph's clips; manage a cache folder: count, check, unpack, trim, export"
    actions = commands.add_parser("cache", help=text, description=text)
    actions = actions.add_subparsers(dest="action", required=True, metavar="ACTION")
    add_encode_command(actions)
    add_cache_commands(actions)
    return parser


def let_segments_grow(
    environment: MutableMapping[str, str], *, torch: str, system: str = sys.platform, kernel: str = platform.release()
) -> None:
    """Requests expandable segments of torch's allocator, unless the user configured it: several clip sizes fragment
    memory less.

    Only on Linux with a CUDA build of torch (`torch`: its version), because other builds print a warning. Not under
    WSL2 (`kernel`: the kernel's release), where they make torch fail, for example with "CUDA driver error".
    """
    built_for = torch.partition("+")[2]
    has_them = system == "linux" and "microsoft" not in kernel.lower()
    has_them &= not built_for.startswith(("cpu", "rocm", "xpu"))
    if has_them and not any(environment.get(name) for name in ALLOCATOR):
        environment[ALLOCATOR[1]] = "expandable_segments:True"
