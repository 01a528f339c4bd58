"""A memo: JSON values by key in one file. It only saves time: the values of a lost or damaged file are recomputed."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from .reading import FileError, file_mark, read_json
from .writing import atomic_write_bytes

_LIMIT_BYTES = 256 << 20
_LONGEST_PATH = 64
"""longest path, in bytes, that is a key; longer paths are hashed, so that 400,000 keys fit into _LIMIT_BYTES"""


class Memo:
    """The newest `most` values of a JSON file; a file of another `version` (JSON data) counts as empty.

    `save` merges the changes into the current file, so that two processes keep each other's values, and ignores errors.
    """

    def __init__(self, path: Path, version: Any, most: int, below: Path | None = None) -> None:
        """`below`: no link is followed below this folder; default: the folder of the file."""
        self._path, self._version, self._most, self._below = path, version, most, below or path.parent
        self._known: dict[str, Any] | None = None
        self._changes: dict[str, Any] = {}

    def get(self, key: str) -> Any:
        """Returns the value of a key, or None."""
        return self._loaded().get(key)

    def put(self, key: str, value: Any) -> None:
        """Set the value of a key (JSON data); None removes it."""
        self._loaded()[key] = self._changes[key] = value

    def values(self) -> list[Any]:
        """Returns all values, the newest last."""
        return [value for value in self._loaded().values() if value is not None]

    def recall(self, file: Path, what: str, ask: Callable[[], Any]) -> Any:
        """Returns `ask()` (JSON data derived from the bytes of `file`), cached while `file_mark` is unchanged.

        The value is not stored if the file changes during the call.
        """
        key, mark = _key(what, file), mark_of(file)
        known = self.get(key)
        if mark is not None and isinstance(known, list) and known[0] == mark:
            return cast("list[Any]", known)[1]
        found = ask()
        if mark is not None and mark_of(file) == mark:
            self.put(key, [mark, found])
        return found

    def recalled(self, file: Path, what: str) -> tuple[list[int], Any] | None:
        """Returns the stored mark and value of `file`, even if the file has changed since."""
        known = self.get(_key(what, file))
        return (known[0], known[1]) if isinstance(known, list) else None

    def save(self) -> None:
        """Write pending changes."""
        if not self._changes:
            return
        newest = self._read()  # another process may have saved meanwhile
        for key, value in self._changes.items():
            newest.pop(key, None)  # A changed value moves to the end, because the oldest values are dropped.
            if value is not None:
                newest[key] = value
        newest = dict(list(newest.items())[-self._most :])
        data = json.dumps({"version": self._version, "known": newest}, separators=(",", ":")).encode()
        with contextlib.suppress(OSError, FileError):
            atomic_write_bytes(self._path, data, self._below)
            self._changes = {}

    def _loaded(self) -> dict[str, Any]:
        if self._known is None:
            self._known = self._read()
        return self._known

    def _read(self) -> dict[str, Any]:
        try:
            data: Any = read_json(self._path, limit_bytes=_LIMIT_BYTES) if self._path.is_file() else {}
        except (FileError, OSError):
            return {}
        ours = isinstance(data, dict) and data.get("version") == self._version
        known: Any = data.get("known") if ours else None
        return cast("dict[str, Any]", known) if isinstance(known, dict) else {}


def mark_of(path: Path | str) -> list[int] | None:
    """Returns `file_mark`, or None if the file does not exist."""
    try:
        return file_mark(path)
    except OSError:
        return None


def _key(what: str, file: Path) -> str:
    name = os.fsencode(os.path.abspath(file))
    long = len(name) > _LONGEST_PATH
    return f"{what} " + (hashlib.sha256(name).hexdigest()[:40] if long else name.decode("utf-8", "backslashreplace"))
