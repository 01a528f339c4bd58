"""A metrics.jsonl of any length opened at once: its history condensed, and kept in a small file of its own.

That file is believed where it belongs to the very file of lines: the same inode and the same end of what was read, and,
where nothing was appended since, the same times. Anything else is read anew from front to back.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import WanTrainerError
from ..files import FileError, atomic_write_bytes, mark_of_facts, open_regular, read_json
from .condensed import Condensed
from .curves import whole_lines
from .pages import MetricsPages
from .sketch import sketch

_FORMAT = 2
_WORTH_KEEPING = 20_000
"""lines that are new since the file was written: fewer are read in no time"""
_LARGEST = 16 << 20


class MetricsHistory(MetricsPages):
    """The lines of one metrics.jsonl, and what is shown of all of them. Safe to share between threads."""

    def __init__(self, path: Path, kept: Path | None = None) -> None:
        self._kept = kept
        self._kept_lines = 0
        self._reader: threading.Thread | None = None
        self._starting = threading.Lock()
        super().__init__(path)

    def condensed(self) -> tuple[int, dict[str, Any]]:
        """Returns the number of whole lines so far, and `Condensed.to_dict` of them."""
        with self._lock:
            with contextlib.suppress(FileError, OSError), open_regular(self._path, follow_links=False) as file:
                self._refresh(file)
                file.seek(self._taken)
                for block in whole_lines(file, self._end - self._taken):
                    self._condensed.add(block)
                self._taken = self._end
                if self._lines - self._kept_lines >= _WORTH_KEEPING:
                    self._keep(file)
                return self._lines, self._condensed.to_dict()
            return 0, Condensed().to_dict()

    def condensed_within(self, seconds: float) -> tuple[int, dict[str, Any]] | None:
        """Returns `condensed`, or None where reading the file takes longer; it is read on then."""
        with self._starting:
            if self._reader is None or not self._reader.is_alive():
                self._reader = threading.Thread(target=self.condensed, name="wan-trainer-history", daemon=True)
                self._reader.start()
            reader = self._reader
        reader.join(seconds)
        return None if reader.is_alive() else self.condensed()

    def sketch(self, within_s: float) -> tuple[int, dict[str, Any]]:
        """Returns what `sketch` makes of the file, whoever reads it meanwhile."""
        return sketch(self._path, within_s)

    def _forget(self) -> None:
        super()._forget()
        self._condensed, self._taken, self._kept_lines = Condensed(), 0, 0

    def _refresh(self, file: BinaryIO) -> None:
        if self._inode < 0 and self._kept is not None and self._kept.is_file():
            try:
                self._believe(read_json(self._kept, limit_bytes=_LARGEST), file)
            except (WanTrainerError, OSError, ValueError, TypeError, LookupError, AttributeError):
                self._forget()
        super()._refresh(file)

    def _believe(self, kept: dict[str, Any], file: BinaryIO) -> None:
        info, tail = os.fstat(file.fileno()), bytes.fromhex(kept["tail"])
        end, lines, marks = int(kept["end"]), int(kept["lines"]), [int(mark) for mark in kept["marks"]]
        if kept["version"] != _FORMAT or kept["inode"] != info.st_ino or not len(tail) <= end <= info.st_size:
            return
        if end == info.st_size and kept["times"] != _times(info):
            return
        if sorted(marks) != marks or marks[0] != 0 or marks[-1] > end or lines < 0:
            return
        condensed = Condensed.from_dict(kept["condensed"])
        self._inode, self._end, self._lines, self._marks, self._tail = info.st_ino, end, lines, marks, tail
        self._condensed, self._taken, self._kept_lines = condensed, end, lines

    def _keep(self, file: BinaryIO) -> None:
        """Write what is known; a full disk is no matter."""
        self._kept_lines = self._lines
        if self._kept is None:
            return
        info = os.fstat(file.fileno())
        state = {
            "version": _FORMAT,
            "inode": self._inode,
            "end": self._end,
            "times": _times(info) if info.st_size == self._end else None,
            "lines": self._lines,
            "marks": self._marks,
            "tail": self._tail.hex(),
            "condensed": self._condensed.to_dict(),
        }
        with contextlib.suppress(FileError, OSError):
            atomic_write_bytes(self._kept, json.dumps(state, separators=(",", ":")).encode(), self._kept.parent)


def _times(info: os.stat_result) -> list[int]:
    _size, modified, _inode, *changed = mark_of_facts(info)
    return [modified, *changed]
