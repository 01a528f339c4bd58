"""metrics.jsonl: one event a line, append-only.

A torn last line is tolerated; of a step trained twice the last line counts.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from ..events import (
    CheckpointSaved,
    Evaluated,
    Event,
    Marked,
    SampleReady,
    StageEnded,
    StepDone,
    StepSkipped,
    Suggested,
    to_line,
)
from ..files import FileError, open_append, open_regular

__all__ = ["JsonlSink"]

_KEPT = (StepDone, StepSkipped, Evaluated, Suggested, Marked, CheckpointSaved, SampleReady, StageEnded)


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
