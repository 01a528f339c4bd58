"""Keeps what a scan learned of files for the next one: a folder of which one caption changed is not opened again.

A file is the one it was while path, size, modification time, inode and, where the system keeps one, the time of the
last change of the inode are (`file_mark`): an edit is seen also when its modification time was put back, except on
Windows. Captions are no part of it; they are read each time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib.metadata
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ..files import FileError, atomic_write_bytes, file_mark, read_json
from ..video import ClipInfo, UnreadableError, VideoProcess

SCAN_VERSION = 2
"""Raise it when what a file is found to hold changes: everything is looked at again then."""
_MOST_FILES = 100_000
_MOST_SEARCHES = 20
_LIMIT_BYTES = 256 << 20


class ScanMemo:
    """A JSON file of path -> mark and findings. Damaged or unwritable, it is forgotten: it only saves time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files: dict[str, list[Any]] | None = None
        """mark, and findings by what they are"""
        self._searches: dict[str, Any] = {}
        self._changed = False

    def probe(self, path: Path, video: VideoProcess) -> ClipInfo:
        """`VideoProcess.probe`, not asked again of a file that is the one it was, nor of one that was refused."""

        def ask() -> list[Any]:
            try:
                return [*dataclasses.astuple(video.probe(path))]
            except UnreadableError as error:
                if not error.lasting:
                    raise
                return [str(error)]

        found = self.recall(path, "probe", ask)
        if len(found) != len(_FIELDS):
            raise UnreadableError(found[0])
        return ClipInfo(**dict(zip(_FIELDS, found, strict=True)))

    def recall(self, path: Path, what: str, ask: Callable[[], Any]) -> Any:
        """Returns what `ask` gave (JSON data) for the file that still lies at `path`; asks where that is not known."""
        name, mark = _short(path), _mark_of(path)
        files = self._load()
        known = files.get(name)
        if known is not None and mark is not None and known[0] == mark and what in known[1]:
            return known[1][what]
        found = ask()
        if mark is not None and _mark_of(path) == mark:  # else it changed while it was looked at
            before = known[1] if known is not None and known[0] == mark else {}
            files.pop(name, None)  # the newest last
            files[name] = [mark, {**before, what: found}]
            self._changed = True
        return found

    def search(self, paths: Iterable[Path], how: str, find: Callable[[], Any]) -> Any:
        """Returns what `find` gave (JSON data) for exactly these files, in this order; finds anew where one changed."""
        digest = hashlib.sha256(how.encode())
        for path in paths:
            digest.update(repr((str(path), _mark_of(path))).encode("utf-8", "surrogatepass"))
        name = digest.hexdigest()
        self._load()
        if name not in self._searches:
            self._searches[name] = find()
            self._changed = True
        return self._searches[name]

    def save(self) -> None:
        """Write the memo if it learned something."""
        if not self._changed or self._files is None:
            return
        newest = dict(list(self._files.items())[-_MOST_FILES:])
        searches = dict(list(self._searches.items())[-_MOST_SEARCHES:])
        data = {"made_by": _made_by(), "files": newest, "searches": searches}
        with contextlib.suppress(OSError, FileError):
            atomic_write_bytes(self._path, json.dumps(data, separators=(",", ":")).encode(), self._path.parent)
            self._changed = False

    def _load(self) -> dict[str, list[Any]]:
        if self._files is None:
            self._files = {}
            with contextlib.suppress(FileError, OSError, ValueError, KeyError, TypeError, AttributeError):
                data = read_json(self._path, limit_bytes=_LIMIT_BYTES) if self._path.is_file() else {}
                if data["made_by"] == _made_by():
                    self._files = {name: [mark, dict(found)] for name, (mark, found) in data["files"].items()}
                    self._searches = dict(data["searches"])
        return self._files


_FIELDS = [field.name for field in dataclasses.fields(ClipInfo)]


def _made_by() -> list[Any]:
    """Whatever decides what a look at a file finds, the file apart."""
    return [SCAN_VERSION, *map(_version_of, ("av", "pillow")), *_FIELDS]


def _version_of(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _mark_of(path: Path) -> list[int] | None:
    try:
        return file_mark(path)
    except OSError:
        return None


def _short(path: Path) -> str:
    name = os.fsencode(os.path.abspath(path))
    return name.decode("utf-8", "backslashreplace") if len(name) <= 64 else hashlib.sha256(name).hexdigest()[:40]
