"""The memos of the cache folder between scans: SHA-256 of media files, and how fast this machine encoded last.

A second scan of the same folder hashes nothing. The memo of a digest trusts path, size, modification time, inode and,
where the system keeps one, the time of the last change of the inode: restoring the modification time after an edit
does not fool it on POSIX.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from ..files import FileError, atomic_write_json, digest_file, file_mark, is_touched, read_json

_MAX_ENTRIES = 200_000
_LONGEST_NAME = 64


class DigestMemo:
    """A JSON file of path -> (identity, digest). A damaged memo is forgotten, never an error: it
    only saves time.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, tuple[list[int], str]] | None = None
        self._changed = False

    def digest_of(self, path: Path, should_stop: Callable[[], bool] | None = None) -> str:
        """The digest of `path`, computed unless the file is the one remembered."""
        known = self._load()
        name, identity = _identity(path)
        if name in known and known[name][0] == identity:
            return known[name][1]
        digest = digest_file(path, should_stop)
        if _identity(path)[1] != identity:
            raise FileError(f"{path.name} changed while it was read. Wait until it is written, then try again.")
        known[name] = (identity, digest)
        self._changed = True
        return digest

    def is_same(self, path: Path, mark: Sequence[int]) -> bool:
        """True when a file that is as large and as old as `mark` says has the digest it had then. False where none is
        known; reads the file.
        """
        known = self._load().get(_identity(path)[0])
        if known is None or (list(mark) != known[0] and not is_touched(mark, known[0])):
            return False
        return self.digest_of(path) == known[1]

    def save(self) -> None:
        """Write the memo if it learned something; where it cannot be written, the next scan hashes again."""
        if self._changed and self._known is not None:
            newest = dict(list(self._known.items())[-_MAX_ENTRIES:])
            with contextlib.suppress(OSError, FileError):
                atomic_write_json(self._path, newest, self._path.parent)
                self._changed = False

    def _load(self) -> dict[str, tuple[list[int], str]]:
        if self._known is None:
            self._known = {}
            try:
                data: dict[str, Any] = read_json(self._path) if self._path.is_file() else {}
                self._known = {_short(name): (identity, digest) for name, (identity, digest) in data.items()}
            except (FileError, OSError, ValueError, TypeError, AttributeError):
                self._known = {}
        return self._known


def _identity(path: Path) -> tuple[str, list[int]]:
    name = os.fsencode(os.path.abspath(path)).decode("utf-8", "backslashreplace")
    return _short(name), file_mark(path)


def _short(name: str) -> str:
    """A path as the memo knows it: 200,000 long ones would make the file larger than it is read back."""
    if len(name) <= _LONGEST_NAME:
        return name
    return "sha256:" + hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:40]


_LEAST_MEGAPIXELS = 1.0
"""less says more about loading the VAE than about encoding"""


class EncodingSpeed:
    """A JSON file of latent space -> seconds per megapixel. It only informs: damaged or unwritable, it is forgotten."""

    def __init__(self, cache_root: Path) -> None:
        self._path = cache_root / "speed.json"

    def seconds_per_megapixel(self, space: str) -> float | None:
        """Returns the pace of the last encoding into that latent space, decoding included; None before the first."""
        value = self._read().get(space)
        if not isinstance(value, (int, float)) or not math.isfinite(value) or value <= 0:
            return None
        return float(value)

    def remember(self, space: str, seconds: float, megapixels: float) -> None:
        """Keep what an encoding of `megapixels` of frames took."""
        if megapixels < _LEAST_MEGAPIXELS or seconds <= 0:
            return
        with contextlib.suppress(OSError, FileError):
            atomic_write_json(self._path, {**self._read(), space: seconds / megapixels}, self._path.parent)

    def _read(self) -> dict[str, Any]:
        try:
            data: Any = read_json(self._path) if self._path.is_file() else {}
        except (FileError, OSError, ValueError):
            return {}
        return cast("dict[str, Any]", data) if isinstance(data, dict) else {}
