"""Pages of metrics.jsonl by line number, for a browser page that follows a run.

The offset of every thousandth line is indexed. A line is complete once its newline is written.
"""

from __future__ import annotations

import contextlib
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from ..events import StepDone
from ..files import FileError, open_regular
from .records import finite, lines_of, parse_record

_LINES_PER_PAGE = 5000
_THIN_LINES_PER_PAGE = 20_000
_NEWEST_LINES = 1000
"""number of lines at the end of the file that are never thinned, because the browser shows all values of the newest
step"""
_OF_A_CURVE = ("step", "loss", "seconds", "timestep_mean", "prior_loss")
_LONGEST_EXPERT = 40
_LINES_PER_MARK = 1000
_PAGE_BYTES = 4 << 20
_LONGEST_LINE = 64 << 10
_TAIL_BYTES = 256


@dataclass(frozen=True)
class Page:
    """The result of `since`."""

    next: int
    """line to request next"""
    records: list[dict[str, Any]]
    """records of the valid lines; line numbers count invalid lines too"""
    more: bool
    """whether the file has further lines"""
    restarted: bool
    """True if the file has fewer lines than the request assumes. It is then another file, and the reader restarts at
    line 0"""


class MetricsPages:
    """The lines of one metrics.jsonl. Safe to share between threads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._clear()

    def count(self) -> int:
        """Returns the number of complete lines; 0 without a file. Reads only the bytes appended since the last call."""
        with self._lock, contextlib.suppress(FileError, OSError), open_regular(self._path, follow_links=False) as file:
            self._refresh(file)
            return self._lines
        return 0

    def since(self, line: int, limit: int = _LINES_PER_PAGE, *, thin: bool = False) -> Page:
        """Returns the records from line `line` (0 = first) on, at most `limit` lines and 4 MiB.

        `thin`: at most 20,000 lines instead, with steps reduced to the values of curves, except in the last thousand
        lines of the file.
        """
        limit = _THIN_LINES_PER_PAGE if thin else limit
        with self._lock, contextlib.suppress(FileError, OSError), open_regular(self._path, follow_links=False) as file:
            self._refresh(file)
            if line <= self._lines:
                full = self._lines - _NEWEST_LINES if thin else 0
                return self._page(file, line, min(line + limit, self._lines), full)
            return Page(self._lines, [], more=False, restarted=True)
        return Page(0, [], more=False, restarted=line > 0)

    def _clear(self) -> None:
        self._inode = -1
        self._marks = [0]  # offset of line 0, 1000, 2000 ...
        self._lines = 0
        self._end = 0  # offset after the last newline
        self._tail = b""  # the last bytes before `_end`

    def _refresh(self, file: BinaryIO) -> None:
        info = os.fstat(file.fileno())
        if info.st_ino != self._inode or info.st_size < self._end or not self._is_same(file):
            self._clear()
            self._inode = info.st_ino
        if info.st_size == self._end:
            return
        place = self._end
        file.seek(place)
        while chunk := file.read(1 << 20):
            self._index(chunk, place)
            place += len(chunk)
        file.seek(max(0, self._end - _TAIL_BYTES))
        self._tail = file.read(min(self._end, _TAIL_BYTES))

    def _is_same(self, file: BinaryIO) -> bool:
        """Returns whether the file still has the same bytes at the end of the indexed lines."""
        # An equal inode proves nothing, because a new file may get the number of a deleted one.
        file.seek(self._end - len(self._tail))
        return file.read(len(self._tail)) == self._tail

    def _index(self, chunk: bytes, place: int) -> None:
        newline = chunk.find(b"\n")
        while newline >= 0:
            self._lines += 1
            self._end = place + newline + 1
            if self._lines % _LINES_PER_MARK == 0:
                self._marks.append(self._end)
            newline = chunk.find(b"\n", newline + 1)

    def _page(self, file: BinaryIO, first: int, last: int, full: int) -> Page:
        """Returns the page of lines `first` to `last`, with steps before line `full` thinned."""
        file.seek(self._marks[first // _LINES_PER_MARK])
        lines = lines_of(file, _LONGEST_LINE)
        for _ in range(first % _LINES_PER_MARK):
            next(lines, b"")
        records: list[dict[str, Any]] = []
        number, size = first, 0
        while number < last and size < _PAGE_BYTES:
            line = next(lines, b"")
            if not line:  # the writer has removed a torn line, for which the disk was full
                break
            number, record = number + 1, parse_record(line)
            if record is not None and number <= full and record.get("event") == StepDone.name:
                records.append(_thinned(record))
                continue
            size += len(line)
            if record is not None:
                records.append(record)
        return Page(number, records, more=number < self._lines, restarted=False)


def _thinned(record: dict[str, Any]) -> dict[str, Any]:
    """Returns the values of a step for the curves, times and timestep histogram, a third of the record's bytes."""
    numbers = {key: record[key] for key in _OF_A_CURVE if finite(record.get(key)) is not None}
    return {"event": StepDone.name, "expert": str(record.get("expert", ""))[:_LONGEST_EXPERT], **numbers}
