"""Writes metrics.jsonl: one event per line, append-only. If a step is trained twice, the last line counts."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import BinaryIO

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
from ..files import FileError, is_held, open_append, open_regular
from ..words import logger

_log = logger(__name__)
_KEPT = (StepDone, StepSkipped, Evaluated, Suggested, Marked, CheckpointSaved, SampleReady, StageEnded)


class JsonlSink:
    """Appends each event as a line, so that a kill damages at most the last line.

    While the disk is full, or another program has the file open (Windows), lines wait for the next event.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._waiting, self._kept_out = path, b"", False
        self._file = self._opened()

    def __call__(self, event: Event) -> None:
        if isinstance(event, _KEPT):
            self._waiting += to_line(event).encode("ascii")
            self._write()

    def close(self) -> None:
        self._write()
        if self._file is not None:
            self._file.close()
        else:
            _log.warning("Another program kept %s open, so the last events of this session are lost.", self._path.name)

    def _opened(self) -> BinaryIO | None:
        """Returns the file, open for appending; None while another program has the file open."""
        # An incomplete line of an earlier process gets a line end first, so that the next event starts a new line.
        torn = _ends_torn(self._path)
        try:
            file = open_append(self._path)
        except OSError as error:
            if not is_held(error, self._path):
                raise
            if not self._kept_out:
                _log.warning("%s is open in another program; new events wait until it closes it.", self._path.name)
            self._kept_out = True
            return None
        self._waiting = (b"\n" if torn else b"") + self._waiting
        return file

    def _write(self) -> None:
        self._file = self._file or self._opened()
        if self._file is None:
            return
        end = self._file.seek(0, 2)
        try:
            if self._waiting and self._file.write(self._waiting) != len(self._waiting):
                raise OSError("short write")
            self._waiting = b""
        except OSError:
            with contextlib.suppress(OSError):  # Removes the part of the line that was written.
                self._file.truncate(end)


def _ends_torn(path: Path) -> bool:
    with contextlib.suppress(FileError), open_regular(path, follow_links=False) as file:
        if file.seek(0, 2):
            file.seek(-1, 2)
            return file.read(1) != b"\n"
    return False
