"""Reads the records of a metrics.jsonl in order. Incomplete, damaged and overlong lines are skipped."""

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
# A shared decoder: `json.loads` with an argument would create one per line, a third of the time.
_DECODER = json.JSONDecoder(parse_constant=lambda _: None)


@dataclass(frozen=True)
class LossCurve:
    """Training loss by step; if a step was trained twice, the last line counts."""

    steps: NDArray[np.int64]
    """ascending numbers of the steps with a finite loss"""
    losses: NDArray[np.float64]
    """(len(steps),)"""
    seconds_per_step: float = 0.0
    """median over the run in seconds; 0 before the first step"""


def read_loss_curve(path: Path, expert: str = "") -> LossCurve:
    """Returns the loss curve of a metrics.jsonl, or of one expert in it; empty without a file."""
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
    """Yields the records of events of these names, in file order. Never raises for the content of a line."""
    marks = [kind.encode() for kind in kinds]
    with contextlib.suppress(FileError, OSError), open_regular(path, follow_links=False) as file:
        for line in lines_of(file, _LONGEST_LINE):
            # Parsing is slow, and most lines are steps, so lines without the text of a wanted event name are skipped.
            if any(mark in line for mark in marks):
                record = parse_record(line)
                if record is not None and record.get("event") in kinds:
                    yield record


def lines_of(file: BinaryIO, longest: int) -> Iterator[bytes]:
    """Yields the complete lines from the position of `file` on. A line longer than `longest` bytes becomes an empty
    line."""
    while line := file.readline(longest):
        is_long = not line.endswith(b"\n")
        while line and not line.endswith(b"\n"):
            line = file.readline(longest)
        if line:  # otherwise the last line is still being written
            yield b"\n" if is_long else line


def parse_record(line: bytes) -> dict[str, Any] | None:
    """Returns the record of a line; None for an invalid line. NaN and infinities become None."""
    try:
        record = _DECODER.decode(line.decode())
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def finite(value: object) -> float | None:
    """Returns a finite number as a float; None for anything else, also bool, NaN and integers too large for a float."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def whole(value: object) -> int | None:
    """Returns an integer from 0 to 2^53, exact in every reader of JSON; None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53 else None
