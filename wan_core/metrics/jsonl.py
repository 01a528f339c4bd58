"""metrics.jsonl: one event a line, append-only.

A torn last line is tolerated; of a step trained twice the last line counts.
"""

from __future__ import annotations

import contextlib
import json
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

__all__ = ["JsonlSink", "read_metrics"]

_KEPT = (StepDone, StepSkipped, Evaluated, CheckpointSaved, SampleReady, StageEnded)


class JsonlSink:
    """Appends the events worth keeping, each line at once, so a kill loses at most a part of the last one.

    A disk that is full for a while costs nothing: lines wait and are written with the next event that gets through.
    """

    def __init__(self, path: Path) -> None:
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115  closed by close()
        self._waiting = b"\n" if _ends_torn(path) else b""

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
    if not path.exists() or path.stat().st_size == 0:
        return False
    with open(path, "rb") as file:
        file.seek(-1, 2)
        return file.read(1) != b"\n"


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """All whole lines in order of their step; for step lines only the newest of each step."""
    if not path.exists():
        return []
    steps: dict[int, dict[str, Any]] = {}
    others: list[dict[str, Any]] = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if not isinstance(record, dict):
            continue
        if record.get("event") == StepDone.name:
            steps[int(record["step"])] = record
        else:
            others.append(record)
    return sorted([*steps.values(), *others], key=lambda r: int(r.get("step", 0)))
