"""Knows of media files without opening them: when one caption of a folder changes, no clip is opened again.

A value counts while the file has the mark it had (`file_mark`): an edit is seen also when the modification time was
put back, except on Windows. Captions are not kept here; they are read each time.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from ..errors import DatasetError
from ..files import FileError, Memo, digest_file, file_mark, is_touched, mark_of
from ..video import ClipInfo, UnreadableError, VideoProcess, shown
from .sample import Companion, Sample

SCAN_VERSION = 2
"""Raise it when what a file is found to hold changes: everything is looked at again then."""
_MOST = 400_000
"""values: of 100,000 files the digest, the probe, the cuts and the look"""
_DIGEST = "digest"


class KnownFiles:
    """The memo of media files in a cache folder: digests, what `VideoProcess` found, copies among them."""

    def __init__(self, cache_root: Path) -> None:
        self._memo = Memo(cache_root / "files.json", _made_by(), _MOST)

    def probe(self, path: Path, video: VideoProcess) -> ClipInfo:
        """`VideoProcess.probe`, once for each file; a file that was refused is refused again unread."""

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
        """`ask()` (JSON data that follows from the bytes of the file), or what it gave for this file before."""
        return self._memo.recall(path, what, ask)

    def digest(self, path: Path, should_stop: Callable[[], bool] | None = None) -> str:
        """The SHA-256 of a file. FileError when it cannot be read, changes meanwhile, or `should_stop` answers True."""

        def ask() -> str:
            mark = file_mark(path)
            found = digest_file(path, should_stop)
            if file_mark(path) != mark:
                raise FileError(f"{path.name} changed while it was read. Wait until it is written, then try again.")
            return found

        return self.recall(path, _DIGEST, ask)

    def _has_same_bytes(self, path: Path, mark: Sequence[int]) -> bool:
        """True when a file that is as large and as old as `mark` says has the digest it had then. False where none is
        known; reads the file.
        """
        known = self._memo.recalled(path, _DIGEST)
        if known is None or (list(mark) != known[0] and not is_touched(mark, known[0])):
            return False
        return self.digest(path) == known[1]

    def require_unchanged(self, file: Sample | Companion) -> None:
        """DatasetError when a file is gone, or is not the one that was scanned. Of one whose rights or names changed,
        the digest decides.
        """
        name = shown(file.path)
        try:
            now = file_mark(file.path)
            same = now == list(file.mark) or (is_touched(file.mark, now) and self._has_same_bytes(file.path, file.mark))
        except OSError as error:
            raise DatasetError("{name} is gone since it was scanned. Press Run again.", name=name) from error
        if not same:
            raise DatasetError("{name} changed since it was scanned. Press Run again.", name=name)

    def search(self, paths: Iterable[Path], how: str, find: Callable[[], Any]) -> Any:
        """`find()` (JSON data), or what it gave for exactly these files in this order, none of them changed."""
        digest = hashlib.sha256(how.encode())
        for path in paths:
            digest.update(repr((str(path), mark_of(path))).encode("utf-8", "surrogatepass"))
        key = f"search {digest.hexdigest()}"
        found = self._memo.get(key)
        if found is None:
            found = find()
            self._memo.put(key, found)
        return found

    def save(self) -> None:
        """Keep what was found for the next time."""
        self._memo.save()


_FIELDS = [field.name for field in dataclasses.fields(ClipInfo)]


def _made_by() -> list[Any]:
    """Returns all that decides what a look at a file finds, apart from the file."""
    return [SCAN_VERSION, *map(_version_of, ("av", "pillow")), *_FIELDS]


def _version_of(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
