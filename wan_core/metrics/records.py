"""Reads the records of a metrics.jsonl from front to back. Owns what a line, a number and a step of that file are.

Files outlive programs, and people edit them: torn lines, damaged lines and lines far longer than ours are skipped.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median_high
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ..events import StepDone
from ..files import FileError, open_regular

_LONGEST_LINE = 8 << 20
_DECODER = json.JSONDecoder(parse_constant=lambda _: None)
"""made once: `json.loads` with an argument makes one for each line, which costs a third of the time"""


@dataclass(frozen=True)
class LossCurve:
    """The training loss of a run in order of its steps; of a step trained twice the last line counts."""

    steps: NDArray[np.int64]
    losses: NDArray[np.float64]
    """(len(steps),), finite; a step with another loss is left out"""
    seconds_per_step: float = 0.0
    """median over the run; 0 before its first step"""


def read_loss_curve(path: Path, expert: str = "") -> LossCurve:
    """Returns the loss curve of a metrics.jsonl, or of one expert of a pair; empty without a file.

    Never raises for the content of a line.
    """
    losses: dict[int, float | None] = {}
    seconds: dict[int, float | None] = {}
    for record in records_of(path, (StepDone.name,)):
        step = whole(record.get("step"))
        if step is not None and expert in ("", record.get("expert")):
            losses[step], seconds[step] = finite(record.get("loss")), finite(record.get("seconds"))
    known = sorted((step, loss) for step, loss in losses.items() if loss is not None)
    return LossCurve(
        np.array([step for step, _ in known], dtype=np.int64),
        np.array([loss for _, loss in known], dtype=np.float64),
        median_high([spent for spent in seconds.values() if spent is not None] or [0.0]),
    )


def records_of(path: Path, kinds: Collection[str]) -> Iterator[dict[str, Any]]:
    """Yields the records of events of these names, in the order of the file."""
    marks = [kind.encode() for kind in kinds]
    with contextlib.suppress(FileError, OSError), open_regular(path, follow_links=False) as file:
        for line in lines_of(file, _LONGEST_LINE):
            # Evaluations and previews are few among the steps: only lines that can be such a record are parsed.
            if any(mark in line for mark in marks):
                record = parse_record(line)
                if record is not None and record.get("event") in kinds:
                    yield record


def lines_of(file: BinaryIO, longest: int) -> Iterator[bytes]:
    """Yields the complete lines from where `file` stands; for a line above `longest` bytes only its newline."""
    while line := file.readline(longest):
        is_long = not line.endswith(b"\n")
        while line and not line.endswith(b"\n"):
            line = file.readline(longest)
        if line:  # else the last line has no newline yet: its writer is not done
            yield b"\n" if is_long else line


def parse_record(line: bytes) -> dict[str, Any] | None:
    """Returns the record of a line; None for any other line. Numbers JSON does not know (NaN) become None."""
    try:
        record = _DECODER.decode(line.decode())
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def finite(value: object) -> float | None:
    """Returns the number as a float.

    Returns None for anything else: texts, truth values, NaN, infinities and what no float holds.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def whole(value: object) -> int | None:
    """Returns the number of a step, 0 or more and exact in every reader of JSON; None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53 else None
