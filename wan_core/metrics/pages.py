"""metrics.jsonl by line number, for a reader that asks again and again: what is new since line N, and no more.

Owns one index per file: where every thousandth line begins. It grows with the file and starts anew with another file
under the same name. The last line counts once its newline is written, so nobody is ever handed a torn one. Numbers are
taken with care, because files outlive programs and people edit them.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from ..files import FileError, open_regular

LINES_PER_PAGE = 5000
_LINES_PER_MARK = 1000
_PAGE_BYTES = 4 << 20
_LONGEST_LINE = 64 << 10
_TAIL_BYTES = 256


@dataclass(frozen=True)
class Page:
    """An answer to `since N`."""

    next: int
    """the line to ask from next time"""
    records: list[dict[str, Any]]
    """one for each line that is a record; a line that was torn by a kill counts and is left out"""
    more: bool
    """further lines are there already"""
    restarted: bool
    """the file has fewer lines than were asked for: it is another one, so begin again at line 0"""


class MetricsPages:
    """The lines of one metrics.jsonl. Safe to share between threads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._forget()

    def count(self) -> int:
        """Returns the number of whole lines so far; 0 while there is no file.

        Reads only what was appended since the last call.
        """
        with self._lock, contextlib.suppress(FileError, OSError), open_regular(self._path, follow_links=False) as file:
            self._refresh(file)
            return self._lines
        return 0

    def since(self, line: int, limit: int = LINES_PER_PAGE) -> Page:
        """Returns the records from line number `line` (0 is the first) on, at most `limit` lines and 4 MiB."""
        with self._lock, contextlib.suppress(FileError, OSError), open_regular(self._path, follow_links=False) as file:
            self._refresh(file)
            if line <= self._lines:
                return self._page(file, line, min(line + limit, self._lines))
            return Page(self._lines, [], more=False, restarted=True)
        return Page(0, [], more=False, restarted=line > 0)

    def _forget(self) -> None:
        self._inode = -1
        self._marks = [0]  # offset of line 0, 1000, 2000 ...
        self._lines = 0
        self._end = 0  # just after the last newline
        self._tail = b""  # what stands before it

    def _refresh(self, file: BinaryIO) -> None:
        info = os.fstat(file.fileno())
        if info.st_ino != self._inode or info.st_size < self._end or not self._is_same(file):
            self._forget()
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
        """Returns False for another file that got the number of a deleted one."""
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

    def _page(self, file: BinaryIO, first: int, last: int) -> Page:
        file.seek(self._marks[first // _LINES_PER_MARK])
        lines = _lines(file)
        for _ in range(first % _LINES_PER_MARK):
            next(lines, b"")
        records: list[dict[str, Any]] = []
        number, size = first, 0
        while number < last and size < _PAGE_BYTES:
            line = next(lines, b"")
            if not line:  # a writer took lines back that did not fit on the disk
                break
            number, size = number + 1, size + len(line)
            if (record := parse_record(line)) is not None:
                records.append(record)
        return Page(number, records, more=number < self._lines, restarted=False)


def parse_record(line: bytes) -> dict[str, Any] | None:
    """Returns the record of a line; None for anything that is none. Numbers JSON does not know (NaN) become null."""
    try:
        record = json.loads(line, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """Yields line after line.

    Of a line that is longer than any of ours it yields only the newline, so that it counts and says nothing.
    """
    while line := file.readline(_LONGEST_LINE):
        too_long = not line.endswith(b"\n")
        while line and not line.endswith(b"\n"):
            line = file.readline(_LONGEST_LINE)
        yield b"\n" if too_long else line


def finite(value: object) -> float | None:
    """Returns the number as a float.

    Returns None for anything else: texts, truth values, NaN, infinities and what no float holds.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def whole(value: object) -> int | None:
    """Returns the number of a step, 0 or more and exact in every reader of JSON; None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53 else None
