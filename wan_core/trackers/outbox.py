"""Unsent messages of the runs of a folder: one file each in its subfolder `_outbox`, written atomically.

Not inside a run: a foreign run folder must not send anything, and a run can be deleted while its messages wait. A file
is removed after its message was sent, so a kill in between sends that message twice and loses none.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

from ..errors import ConfigError
from ..files import FileError, atomic_write_json, locked, open_inside, remove_file, safe_name

_FOLDER = "_outbox"
_NAME = re.compile(r"(\d{20})\.(webhook|mirror)\.json")
_MOST = 500
"""files of a kind; the oldest are removed"""
_RETRY_S = 0.5
_LONGEST_BYTES = 1 << 20
_AHEAD_NS = 24 * 3600 * 10**9


class Outbox:
    """The messages of one kind, webhook or mirror. Creates its folder with the first message."""

    def __init__(self, runs: Path, kind: str) -> None:
        self._runs, self._kind = runs, kind
        self._done: set[Path] = set()
        """sent, but still present: on Windows another program may hold them open"""

    def put(self, message: dict[str, Any]) -> None:
        """Keep a message until it is sent. Raises OSError or FileError."""
        known, now = self.waiting(), time.time_ns()
        numbers = (int(file.name.partition(".")[0]) for file in known)
        # A clock may be set back a little, and order must hold; a number far ahead is no message of ours.
        newest = max((number for number in numbers if number < now + _AHEAD_NS), default=0)
        name = f"{max(newest + 1, now):020d}.{self._kind}.json"
        atomic_write_json(self._runs / _FOLDER / name, message, self._runs)
        for old in known[: max(0, len(known) + 1 - _MOST)]:
            self.remove(old)

    def waiting(self) -> list[Path]:
        """Returns the files without links, oldest first."""
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
        """Returns the message of a file; None where it is unreadable. An invalid file is removed."""
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
        """Returns the folder of a message's run; None where there is no such run."""
        try:
            directory = self._runs / safe_name(str(message.get("run")), "run")
        except ConfigError:
            return None
        return directory if (directory / "run.json").is_file() and not directory.is_symlink() else None

    def remove(self, file: Path) -> None:
        """Remove a file; a missing one is no error, and one that is held open is removed later."""
        self._done.add(file)
        if remove_file(file, self._runs):
            self._done.remove(file)

    def drain(self, send: Callable[[], bool]) -> None:
        """Calls `send` until nothing waits; it returns False while another process is sending."""
        while not send() and self.waiting():
            time.sleep(_RETRY_S)

    @contextlib.contextmanager
    def alone(self) -> Iterator[bool]:
        """Yields whether this process holds the lock on sending messages of this kind."""
        with contextlib.ExitStack() as held:
            try:
                lock = self._runs / _FOLDER / f".{self._kind}.lock"
                held.enter_context(locked(lock, "it is sent by another process", self._runs))
            except (FileError, OSError):
                yield False
            else:
                yield True
