"""metrics.jsonl: one event a line, append-only.

A torn last line is tolerated; of a step trained twice the last line counts.
"""

from __future__ import annotations

import contextlib
import json
import logging
from pathlib import Path
from typing import Any

from ..events import (
    CheckpointSaved,
    Evaluated,
    Event,
    SampleReady,
    StepDone,
    StepSkipped,
    to_line,
)

__all__ = ["JsonlSink", "read_metrics"]

_log = logging.getLogger(__name__)
_KEPT = (StepDone, StepSkipped, Evaluated, CheckpointSaved, SampleReady)


class JsonlSink:
    """Appends the events worth keeping; every line is flushed, so a kill loses at most a part of the last one.

    A disk that takes no more costs lines, never the run: what waits is written when there is room again.
    """

    def __init__(self, path: Path) -> None:
        torn = _ends_torn(path)
        self._file = open(path, "a", encoding="utf-8", newline="\n")  # noqa: SIM115  closed by close()
        self._warned = False
        if torn:
            self._file.write("\n")

    def __call__(self, event: Event) -> None:
        if isinstance(event, _KEPT):
            try:
                self._file.write(to_line(event))
                self._file.flush()
            except OSError as error:
                if not self._warned:
                    _log.warning("metrics.jsonl cannot be written (%s); lines may be missing.", error.strerror)
                self._warned = True

    def close(self) -> None:
        with contextlib.suppress(OSError):  # a flush that fails; the descriptor is closed all the same
            self._file.close()


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
