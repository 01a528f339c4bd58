"""Unsent messages of the runs in a folder: one file each in the subfolder `_outbox`, written atomically.

They are not inside a run, because a foreign run folder must not send anything, and because a run can be deleted while
its messages wait. A file is removed after its message was sent, so a kill in between sends the message twice.
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
"""largest number of files of a kind; the oldest are removed"""
_RETRY_S = 0.5
_LONGEST_BYTES = 1 << 20
_AHEAD_NS = 24 * 3600 * 10**9


class Outbox:
    """The messages of one kind, webhook or mirror. Creates its folder with the first message."""

    def __init__(self, runs: Path, kind: str) -> None:
        self._runs, self._kind = runs, kind
        self._done: set[Path] = set()
        """files of sent messages that another program has open, which Windows cannot remove"""

    def put(self, message: dict[str, Any]) -> None:
        """Stores a message until it is sent. Raises OSError or FileError."""
        known, now = self.waiting(), time.time_ns()
        numbers = (int(file.name.partition(".")[0]) for file in known)
        # Keeps the order if the clock was set back a little; a number far in the future is not a file of ours.
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
        """Returns the message of a file; None if it is unreadable. An invalid file is removed."""
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
        """Returns the folder of a message's run; None if there is no such run."""
        try:
            directory = self._runs / safe_name(str(message.get("run")), "run")
        except ConfigError:
            return None
        return directory if (directory / "run.json").is_file() and not directory.is_symlink() else None

    def remove(self, file: Path) -> None:
        """Removes a file; later if another program has it open."""
        self._done.add(file)
        if remove_file(file, self._runs):
            self._done.remove(file)

    def drain(self, send: Callable[[], bool]) -> None:
        """Calls `send` until no message waits. `send` returns False while another process is sending."""
        while not send() and self.waiting():
            time.sleep(_RETRY_S)

    @contextlib.contextmanager
    def alone(self) -> Iterator[bool]:
        """Yields whether this process got the lock on sending messages of this kind."""
        with contextlib.ExitStack() as held:
            try:
                lock = self._runs / _FOLDER / f".{self._kind}.lock"
                held.enter_context(locked(lock, "another process sends these messages", self._runs))
            except (FileError, OSError):
                yield False
            else:
                yield True
