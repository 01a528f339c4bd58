"""The newest facts of a run, from the end of its metrics.jsonl.

Read backwards, a long run costs what a short one does.
"""

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
    """The newest of each kind of record."""

    step: dict[str, Any] = field(default_factory=dict[str, Any])
    """record of the last step; empty before the first"""
    reached: int | None = None
    """number of the last step, skipped ones included"""
    seconds_per_step: float | None = None
    """median of the last 20 steps"""
    eval_loss: float | None = None
    eval_step: int | None = None
    eval_held_out: bool | None = None
    """whether `eval_loss` is of held-out clips"""
    eval_expert: str = ""
    """expert of `eval_loss`; empty in a run of one model"""
    suggested: dict[str, Any] | None = None
    """record of the suggestion after that evaluation; None without one"""


def read_tail(path: Path) -> MetricsTail:
    """Returns the newest facts of a metrics.jsonl; empty when there is none."""
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
    seconds = [number for s in steps if (number := finite(s.get("seconds"))) is not None]
    return MetricsTail(
        step=steps[0] if steps else {},
        reached=reached,
        seconds_per_step=median(seconds) if seconds else None,
        eval_loss=finite((evaluated or {}).get("eval_loss")),
        eval_step=whole((evaluated or {}).get("step")),
        eval_held_out=held_out if isinstance(held_out := (evaluated or {}).get("held_out"), bool) else None,
        eval_expert=expert if isinstance(expert := (evaluated or {}).get("expert"), str) else "",
        suggested=suggested,
    )


def _kind(line: bytes) -> str:
    """Returns which event a line is, without parsing it: `to_line` writes the name first."""
    head = line[:40]
    return next((name for mark, name in _HEADS.items() if mark in head), "")


def _backwards(file: BinaryIO) -> Iterator[bytes]:
    """Yields whole lines, the last one first; a torn last line is not among them."""
    place = file.seek(0, os.SEEK_END)
    stop = max(0, place - _SEARCH_BYTES)
    rest, torn, block = b"", True, _FIRST_BLOCK_BYTES
    while place > stop:
        size, block = min(block, place - stop), _BLOCK_BYTES
        place -= size
        file.seek(place)
        pieces = (file.read(size) + rest).split(b"\n")
        rest = pieces[0]
        for line in reversed(pieces[1:]):
            if not torn:
                yield line
            torn = False  # what stands after the last newline
    if not torn and stop == 0:
        yield rest
