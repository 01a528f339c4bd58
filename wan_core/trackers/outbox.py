"""Keeps what is still to be sent of the runs of a folder: small files in `_outbox` beside them, each written whole.

It stands beside the runs and not in them: whatever lies in the folder of a run, which may be a stranger's, sends
nothing, and a run can be deleted while something of it waits. A file goes once its message was taken: where the process
is killed between the two, that one message is sent twice, and none is lost.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from ..errors import ConfigError
from ..files import FileError, atomic_write_json, locked, open_inside, remove_file, safe_name

_FOLDER = "_outbox"
_NAME = re.compile(r"(\d{20})\.(webhook|mirror)\.json")
_MOST = 500
"""files of a kind; the oldest go"""
_LONGEST_BYTES = 1 << 20
_AHEAD_NS = 24 * 3600 * 10**9


class Outbox:
    """The files of one kind, webhook or mirror. Made with the first of them."""

    def __init__(self, runs: Path, kind: str) -> None:
        self._runs, self._kind = runs, kind
        self._done: set[Path] = set()
        """taken out, though on Windows a program that holds one open keeps it there"""

    def put(self, message: dict[str, Any]) -> None:
        """Keep a message until it is sent. Raises OSError or FileError where it cannot be written."""
        known, now = self.waiting(), time.time_ns()
        numbers = (int(file.name.partition(".")[0]) for file in known)
        # A clock may be set back a little; a number that is far ahead is of nobody's message.
        newest = max((number for number in numbers if number < now + _AHEAD_NS), default=0)
        name = f"{max(newest + 1, now):020d}.{self._kind}.json"
        atomic_write_json(self._runs / _FOLDER / name, message, self._runs)
        for old in known[: max(0, len(known) + 1 - _MOST)]:
            self.remove(old)

    def waiting(self) -> list[Path]:
        """Returns the files, oldest first; a link is none."""
        folder = self._runs / _FOLDER
        try:
            with os.scandir(folder) as entries:
                names = [entry.name for entry in entries if entry.is_file(follow_symlinks=False)]
        except OSError:
            return []
        found = [folder / name for name in sorted(names) if (m := _NAME.fullmatch(name)) and m[2] == self._kind]
        for file in (done := self._done.intersection(found)):
            self.remove(file)
        return [file for file in found if file not in done]

    def read(self, file: Path) -> dict[str, Any] | None:
        """Returns the message of a file, or None where it cannot be read; one that is no message is removed."""
        try:
            with open_inside(file, self._runs) as opened:
                data = opened.read(_LONGEST_BYTES)
        except (FileError, OSError):
            return None
        with contextlib.suppress(ValueError, RecursionError):
            message: Any = json.loads(data)
            if isinstance(message, dict):
                return cast("dict[str, Any]", message)
        self.remove(file)
        return None

    def run_of(self, message: dict[str, Any]) -> Path | None:
        """Returns the folder of the run that a message is of; None where that was deleted, or is none beside it."""
        try:
            directory = self._runs / safe_name(str(message.get("run")), "run")
        except ConfigError:
            return None
        return directory if (directory / "run.json").is_file() and not directory.is_symlink() else None

    def remove(self, file: Path) -> None:
        """Take a file out; one that is gone already is no error, and one that is held open goes later."""
        self._done.add(file)
        if remove_file(file, self._runs):
            self._done.remove(file)

    @contextlib.contextmanager
    def alone(self) -> Iterator[bool]:
        """Gives whether nobody else sends messages of this kind; nobody does until the end."""
        with contextlib.ExitStack() as held:
            try:
                lock = self._runs / _FOLDER / f".{self._kind}.lock"
                held.enter_context(locked(lock, "it is sent by another process", self._runs))
            except (FileError, OSError):
                yield False
            else:
                yield True
