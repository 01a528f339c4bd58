"""Remembers what is known of entries unread: which files were written and checked here, and which are in doubt.

An entry is written only after it was checked, and packed only after it was read back. As long as its file is the one
it was then (size, modification time, inode and, where the system keeps one, the time of the last change of the inode),
its tensors need not be read to know that they are there. Seen is whatever touches the file: an edit, a truncation, a
copy in its place, also one whose modification time was put back (not on Windows, which keeps no time of the last
change). Not seen is a disk that returns other bytes for a file nobody touched: the checksum finds that when the entry
is read, and whoever finds it leaves a mark in `doubts`, so that the next plan reads the entry again.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any, cast

from ..files import FileError, atomic_write_bytes, file_mark, read_json, remove_file

_MOST = 200_000
"""remembered; entries in packs that were made here need one place for the whole pack"""

FileMark = list[int]


def mark_of(path: Path | str) -> FileMark | None:
    """Returns `file_mark`, or None where there is no file."""
    try:
        return file_mark(path)
    except OSError:
        return None


class Verified:
    """A JSON file of names -> marks, and a folder of doubts. Both only save time or cost it: damaged, unwritable or
    gone, entries are read again.
    """

    def __init__(self, cache_root: Path) -> None:
        self._path, self._doubts = cache_root / "verified.json", cache_root / "doubts"
        self._known: dict[str, FileMark] | None = None
        self._doubted: set[str] | None = None
        self._changed = False

    def knows(self, name: str, mark: FileMark) -> bool:
        """True when the file with that mark was found sound under that name."""
        return self._load().get(name) == mark

    def remember(self, name: str, mark: FileMark) -> None:
        """Take a file for sound, until it changes."""
        known = self._load()
        known.pop(name, None)  # the newest last
        known[name] = mark
        self._changed = True

    def is_doubted(self, name: str) -> bool:
        """True when somebody could not read that entry since it was last found sound; looks once."""
        if self._doubted is None:
            try:
                self._doubted = set(os.listdir(self._doubts))
            except OSError:
                self._doubted = set()
        return name in self._doubted

    def doubt(self, name: str) -> None:
        """Leave a mark that an entry could not be read, for whoever plans next."""
        with contextlib.suppress(OSError, FileError):
            atomic_write_bytes(self._doubts / name, b"", self._doubts.parent)
        if self._doubted is not None:
            self._doubted.add(name)

    def settle(self, name: str) -> None:
        """Take a doubt back: the entry was written again, or found sound."""
        if self.is_doubted(name):
            assert self._doubted is not None
            self._doubted.discard(name)
            remove_file(self._doubts / name, self._doubts.parent)

    def save(self) -> None:
        """Write the memo if it learned something; where it cannot be written, the next plan reads the entries."""
        if self._changed and self._known is not None:
            newest = dict(list(self._known.items())[-_MOST:])
            with contextlib.suppress(OSError, FileError):
                data = json.dumps(newest, separators=(",", ":")).encode()
                atomic_write_bytes(self._path, data, self._path.parent)
                self._changed = False

    def _load(self) -> dict[str, FileMark]:
        if self._known is None:
            try:
                data: Any = read_json(self._path) if self._path.is_file() else {}
            except (FileError, OSError, ValueError):
                data = {}
            self._known = cast("dict[str, FileMark]", data) if isinstance(data, dict) else {}
        return self._known
