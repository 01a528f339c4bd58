"""Reads the newest records of a run from the end of metrics.jsonl, in a time that does not depend on its length."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, BinaryIO

from ..events import Evaluated, StepDone, StepSkipped, Suggested
from ..files import FileError, open_regular
from .records import finite, parse_record, whole

_FIRST_BLOCK_BYTES = 64 << 10
_BLOCK_BYTES = 1 << 20
_PACE_STEPS = 20
_SEARCH_BYTES = 64 << 20
_HEADS = {f'"event": "{kind.name}"'.encode(): kind.name for kind in (StepDone, StepSkipped, Evaluated, Suggested)}


@dataclass(frozen=True)
class MetricsTail:
    """The newest values of a run."""

    step: dict[str, Any] = field(default_factory=dict[str, Any])
    """record of the last step; {} before the first"""
    reached: int | None = None
    """number of the last step, including skipped steps"""
    seconds_per_step: float | None = None
    """median of the last 20 steps"""
    eval_loss: float | None = None
    eval_step: int | None = None
    eval_held_out: bool | None = None
    eval_expert: str = ""
    """"" in a run of one model"""
    suggested: dict[str, Any] | None = None
    """record of the suggestion after that evaluation"""


def read_tail(path: Path) -> MetricsTail:
    """Returns the newest values of a metrics.jsonl; the defaults without a file."""
    steps: list[dict[str, Any]] = []
    reached: int | None = None
    evaluated: dict[str, Any] | None = None
    suggested: dict[str, Any] | None = None
    with contextlib.suppress(FileError, OSError), open_regular(path, follow_links=False) as file:
        for line in _backwards(file):
            kind = _kind(line)
            if reached is None and kind in (StepDone.name, StepSkipped.name):
                reached = whole((parse_record(line) or {}).get("step"))
            if kind == StepDone.name and len(steps) < _PACE_STEPS and (record := parse_record(line)):
                steps.append(record)
            elif kind == Evaluated.name and evaluated is None:
                evaluated = parse_record(line)
            elif kind == Suggested.name and evaluated is None and suggested is None:
                suggested = parse_record(line)
            if evaluated is not None and len(steps) == _PACE_STEPS:
                break
    evaluated = evaluated or {}
    seconds = [number for s in steps if (number := finite(s.get("seconds"))) is not None]
    return MetricsTail(
        step=steps[0] if steps else {},
        reached=reached,
        seconds_per_step=median(seconds) if seconds else None,
        eval_loss=finite(evaluated.get("eval_loss")),
        eval_step=whole(evaluated.get("step")),
        eval_held_out=held_out if isinstance(held_out := evaluated.get("held_out"), bool) else None,
        eval_expert=expert if isinstance(expert := evaluated.get("expert"), str) else "",
        suggested=suggested,
    )


def _kind(line: bytes) -> str:
    """Returns the event name of a line without parsing the line: `to_line` writes the name first."""
    head = line[:40]
    return next((name for mark, name in _HEADS.items() if mark in head), "")


def _backwards(file: BinaryIO) -> Iterator[bytes]:
    """Yields the lines, last first, without an incomplete last line."""
    place = file.seek(0, os.SEEK_END)
    stop = max(0, place - _SEARCH_BYTES)
    head, torn, block = b"", True, _FIRST_BLOCK_BYTES
    while place > stop:
        size, block = min(block, place - stop), _BLOCK_BYTES
        place -= size
        file.seek(place)
        pieces = (file.read(size) + head).split(b"\n")
        head = pieces[0]  # the beginning of the line is in the previous block
        for line in reversed(pieces[1:]):
            if not torn:
                yield line
            torn = False  # the last piece follows the last newline
    if not torn and stop == 0:
        yield head
