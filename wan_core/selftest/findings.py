"""Runs the checks and reports one short line each, without paths."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..words import first_line, plain, shortened
from .machine import compute, libraries, media, system
from .tiny_run import trains, trains_in_fp8

OK, FAILED = "ok", "failed"
_PATH = re.compile(r"""(?:[A-Za-z]:[\\/]|(?<![\w.])/)[^\s'",;:)]+""")
_LONGEST = 300

_TRIED: tuple[tuple[str, Callable[[Path], str]], ...] = (
    ("system", system),
    ("libraries", libraries),
    ("compute", compute),
    ("video", media),
    ("training", trains),
    ("fp8 training", trains_in_fp8),
)
"""(name, check), cheap checks first. A check gets an empty folder, returns its finding as text, and raises on
failure"""


@dataclass(frozen=True)
class Finding:
    name: str
    state: str
    said: str
    seconds: float


def check_machine(show: Callable[[Finding], None]) -> list[Finding]:
    """Runs the checks in a temporary folder, and calls `show` with each finding. Never raises."""
    found: list[Finding] = []
    with tempfile.TemporaryDirectory(prefix="wan_trainer_check_", ignore_cleanup_errors=True) as folder:
        for number, (name, work) in enumerate(_TRIED):
            place = Path(folder).resolve() / f"{number}"
            place.mkdir()
            began = time.monotonic()
            state, said = _tried(work, place)
            found.append(Finding(name, state, said, time.monotonic() - began))
            show(found[-1])
    return found


def as_text(finding: Finding) -> str:
    state = "FAILED" if finding.state == FAILED else finding.state
    return f"{state:<6}  {finding.name:<13}  {finding.said}  ({finding.seconds:.1f} s)"


def _tried(work: Callable[[Path], str], place: Path) -> tuple[str, str]:
    try:
        return OK, work(place)
    except Exception as error:  # a failed check does not stop the next ones
        said = plain(f"{type(error).__name__}: {first_line(error)}")
        return FAILED, shortened(_PATH.sub("[path]", said), _LONGEST)
