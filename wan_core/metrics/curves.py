"""The curves of a run, from a metrics.jsonl of any length: read once from front to back, in little memory.

A million lines are read in a second or two and kept as three columns of numbers. Lines are taken apart by a pattern of
what `to_line` writes; any other line, and any other spelling, goes the slow way and means the same.
"""

from __future__ import annotations

import contextlib
import re
from array import array
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ..events import Evaluated, StepDone
from ..files import FileError, open_regular
from .pages import finite, parse_record, whole

_BLOCK_BYTES = 1 << 20
_LONGEST_LINE = 8 << 20
_LINE = re.compile(
    rb'\{"event": "step", "step": (\d{1,15}), "steps": \d+, "loss": ([^,\n]{1,40}), "lr": [^,\n]+, '
    rb'"grad_norm": [^,\n]+, "seconds": ([^,\n]{1,40}),[^\n]*\}\n|([^\n]*)\n'
)
_EVALUATED = b'"event": "evaluated"'
_NOTHING = float("nan")


@dataclass(frozen=True)
class Curves:
    """The measurements of a run, in order of their step; of a step trained or measured twice the last line counts."""

    steps: NDArray[np.int64]
    losses: NDArray[np.float64]
    """finite; a step without such a loss is left out"""
    seconds: NDArray[np.float64]
    """of the steps whose time is known, in no order"""
    eval_losses: dict[int, float | None]
    """None where the loss was not finite"""

    @property
    def seconds_per_step(self) -> float:
        """Median over the run; 0 before its first step."""
        middle = len(self.seconds) // 2
        return float(np.partition(self.seconds, middle)[middle]) if len(self.seconds) else 0.0


def read_curves(path: Path, expert: str = "") -> Curves:
    """Returns the curves of a metrics.jsonl, or of what one expert of a pair did; empty when there is none.

    Never raises for what a line holds.
    """
    steps, losses, seconds = array("q"), array("d"), array("d")
    evaluated: dict[int, float | None] = {}
    with contextlib.suppress(FileError, OSError), open_regular(path, follow_links=False) as file:
        for block in whole_lines(file):
            if expert:
                block = _lines_of(block, expert)
            for step, loss, spent, other in _LINE.findall(block):
                if step and (numbers := _numbers(loss, spent)) is not None:
                    steps.append(int(step))
                    losses.append(numbers[0])
                    seconds.append(numbers[1])
                elif other or step:
                    _slowly(other or _again(step, loss, spent), steps, losses, seconds, evaluated)
    return _sorted(steps, losses, seconds, evaluated)


def eval_losses(path: Path) -> dict[int, float | None]:
    """Returns step -> fixed-noise loss; of a step measured twice the last one counts."""
    found: dict[int, float | None] = {}
    with contextlib.suppress(FileError, OSError), open_regular(path, follow_links=False) as file:
        for block in whole_lines(file):
            place = block.find(_EVALUATED)
            while place >= 0:
                start, end = block.rfind(b"\n", 0, place) + 1, block.find(b"\n", place)
                _evaluated(block[start:end], found)
                place = block.find(_EVALUATED, end)
    return found


def _evaluated(line: bytes, found: dict[int, float | None]) -> None:
    record = parse_record(line)
    if record and record.get("event") == Evaluated.name and (step := whole(record.get("step"))) is not None:
        found[step] = finite(record.get("eval_loss"))


def records_of(path: Path, kinds: Collection[str]) -> Iterator[dict[str, Any]]:
    """Yields the records of events of these names, in the order of the file; torn and damaged lines are left out.

    Only lines that may be such records are parsed, so a long run costs little more than reading its file.
    """
    marks = [f'"event": "{kind}"'.encode() for kind in kinds]
    with contextlib.suppress(FileError, OSError), open_regular(path, follow_links=False) as file:
        for block in whole_lines(file):
            for line in _lines_with(block, marks):
                if (record := parse_record(line)) and record.get("event") in kinds:
                    yield record


def _lines_with(block: bytes, marks: Sequence[bytes]) -> Iterator[bytes]:
    """Yields the lines of a block that hold one of the marks, in order."""
    places = {mark: block.find(mark) for mark in marks}
    while found := [place for place in places.values() if place >= 0]:
        start, end = block.rfind(b"\n", 0, min(found)) + 1, block.find(b"\n", min(found))
        yield block[start:end]
        places = {mark: place if place < 0 or place > end else block.find(mark, end) for mark, place in places.items()}


def _lines_of(block: bytes, expert: str) -> bytes:
    """Returns the lines of a block that name an expert."""
    mark = f'"expert": "{expert}"'.encode()
    return b"".join(line for line in block.splitlines(keepends=True) if mark in line)


def _slowly(
    line: bytes,
    steps: array[int],
    losses: array[float],
    seconds: array[float],
    evaluated: dict[int, float | None],
) -> None:
    """Reads a line that is no step as `to_line` writes it."""
    if b"evaluated" in line:
        _evaluated(line, evaluated)
    elif b"step" in line and (record := parse_record(line)) and record.get("event") == StepDone.name:
        step = whole(record.get("step"))
        if step is not None:
            loss, spent = finite(record.get("loss")), finite(record.get("seconds"))
            steps.append(step)
            losses.append(_NOTHING if loss is None else loss)
            seconds.append(_NOTHING if spent is None else spent)


def _again(step: bytes, loss: bytes, spent: bytes) -> bytes:
    """Returns the numbers of a step whose spelling only JSON can judge."""
    return b'{"event": "step", "step": %s, "loss": %s, "seconds": %s}' % (step, loss, spent)


def _numbers(loss: bytes, spent: bytes) -> tuple[float, float] | None:
    """Returns both as floats; None where they are no plain numbers."""
    try:
        return float(loss), float(spent)
    except ValueError:
        return None


def whole_lines(file: BinaryIO, size: int | None = None) -> Iterator[bytes]:
    """Yields blocks that end with a newline, of the next `size` bytes or of all.

    A torn last line, and one that is far longer than any of ours, is left out.
    """
    rest, skipping, left = b"", False, size
    while block := file.read(_BLOCK_BYTES if left is None else min(_BLOCK_BYTES, left)):
        left = None if left is None else left - len(block)
        end = block.rfind(b"\n") + 1
        if not end:
            rest, skipping = (b"", True) if len(rest) > _LONGEST_LINE else (rest + block, skipping)
            continue
        whole_block, rest = rest + block[:end], block[end:]
        yield whole_block[whole_block.find(b"\n") + 1 :] if skipping else whole_block
        skipping = False


def _sorted(
    steps: array[int], losses: array[float], seconds: array[float], evaluated: dict[int, float | None]
) -> Curves:
    order = np.array(steps, dtype=np.int64)
    values, spent = np.array(losses, dtype=np.float64), np.array(seconds, dtype=np.float64)
    if len(order) and not bool((np.diff(order) > 0).all()):
        by_step = np.argsort(order, kind="stable")
        last = by_step[np.append(np.diff(order[by_step]) > 0, True)]
        order, values, spent = order[last], values[last], spent[last]
    known = np.isfinite(values)
    return Curves(order[known], values[known], spent[np.isfinite(spent)], evaluated)
