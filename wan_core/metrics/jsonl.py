"""metrics.jsonl: one event a line, append-only.

A torn last line is tolerated; of a step trained twice the last line counts.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from ..events import (
    CheckpointSaved,
    Evaluated,
    Event,
    SampleReady,
    StageEnded,
    StepDone,
    StepSkipped,
    to_line,
)
from ..files import FileError, open_append, open_regular
from .pages import parse_record, whole

__all__ = ["JsonlSink", "read_metrics"]

_KEPT = (StepDone, StepSkipped, Evaluated, CheckpointSaved, SampleReady, StageEnded)


class JsonlSink:
    """Appends the events worth keeping, each line at once, so a kill loses at most a part of the last one.

    A disk that is full for a while costs nothing: lines wait and are written with the next event that gets through.
    """

    def __init__(self, path: Path) -> None:
        self._waiting = b"\n" if _ends_torn(path) else b""
        self._file = open_append(path)

    def __call__(self, event: Event) -> None:
        if isinstance(event, _KEPT):
            self._waiting += to_line(event).encode("ascii")
            self._write()

    def close(self) -> None:
        self._write()
        self._file.close()

    def _write(self) -> None:
        end = self._file.seek(0, 2)
        try:
            if self._waiting and self._file.write(self._waiting) != len(self._waiting):
                raise OSError("short write")
            self._waiting = b""
        except OSError:
            with contextlib.suppress(OSError):
                self._file.truncate(end)


def _ends_torn(path: Path) -> bool:
    with contextlib.suppress(FileError), open_regular(path, follow_links=False) as file:
        if file.seek(0, 2):
            file.seek(-1, 2)
            return file.read(1) != b"\n"
    return False


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Returns all whole lines in order of their step; for step lines only the newest of each step.

    Never raises for what a line holds: one that is no record, or whose step is no whole number, is left out. A number
    JSON does not know (NaN) is None; what else a record says is the reader's to check.
    """
    steps: dict[int, dict[str, Any]] = {}
    others: list[dict[str, Any]] = []
    with contextlib.suppress(FileError, OSError), open_regular(path, follow_links=False) as file:
        for line in file:
            record = parse_record(line)
            if record is None or (step := _step_of(record)) is None:
                continue
            if record.get("event") == StepDone.name:
                steps[step] = record
            else:
                others.append(record)
    return sorted([*steps.values(), *others], key=lambda r: r.get("step", 0))


def _step_of(record: dict[str, Any]) -> int | None:
    """Returns the step of a record, 0 for an event that has none (the end of a stage).

    Returns None for a step that is no number.
    """
    if "step" not in record and record.get("event") not in (StepDone.name, Evaluated.name):
        return 0
    return whole(record.get("step"))
