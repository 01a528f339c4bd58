"""`wan_core check`: the self-test, as a few lines for a bug report."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable
from typing import BinaryIO

from ..errors import ExitCode
from ..events import Emit
from ..packages import first_import
from .output import done


def add_check_command(command: Callable[..., argparse.ArgumentParser]) -> None:
    command("check", _check, "train a tiny model here and say what works, for bug reports")


def _check(_options: argparse.Namespace, _emit: Emit, out: BinaryIO) -> int:
    with first_import("torch"):
        from ..selftest import FAILED, Finding, as_text, check_machine

    logging.getLogger().setLevel(logging.WARNING)  # the self-test's runs must not log

    def tell(finding: Finding) -> None:
        print(as_text(finding), file=sys.stderr, flush=True)

    found = check_machine(tell)
    failed = [finding.name for finding in found if finding.state == FAILED]
    seconds = sum(finding.seconds for finding in found)
    verdict = f"{', '.join(failed)} failed" if failed else "everything that a run needs works"
    print(f"{verdict} ({seconds:.0f} s). These lines hold no paths: paste them into a report.", file=sys.stderr)
    if not out.isatty():  # a terminal has shown the lines already
        facts = {one.name: {"state": one.state, "said": one.said, "seconds": round(one.seconds, 2)} for one in found}
        done(out, {"findings": facts, "failed": failed})
    return ExitCode.BUG if failed else ExitCode.DONE
