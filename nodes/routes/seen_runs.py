"""Remembers what the files of run folders said when they were last read, and knows those files again by their marks.

Kept in memory, and in one file beside the runs, so that a server that has just started tells of thousands of runs
without opening them. A run whose files have other marks is read again, and the file as a whole counts only for the
version of the pack that wrote it. Runs nobody has seen are read in a thread, the newest first: whoever asks need not
wait for all of them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from ...wan_core import __version__
from ...wan_core.errors import WanTrainerError
from ...wan_core.files import FileError, atomic_write_bytes, read_json
from ...wan_core.words import logger
from ..runs.seen_folder import index_file
from .seen_run import Marks, SeenRun, marks_of, read_seen

_log = logger(__name__)

DAMAGED = (ValueError, TypeError, AttributeError, ArithmeticError, RecursionError, KeyError)
"""what reading files may raise that hold JSON of another shape than ours"""

_FORMAT = 3
_MOST = 8192
_WORTH_KEEPING = 20
"""runs read anew before the file is written again: fewer are read in no time"""


class SeenRuns:
    """Safe to share between threads."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, tuple[Marks, SeenRun]] = OrderedDict()
        self._opened: set[Path] = set()
        self._unkept: dict[Path, int] = {}
        self._lock = threading.Lock()
        self._reader: _Reader | None = None
        self.reads = 0
        """how many runs were read from their own files"""

    def of(self, directory: Path) -> SeenRun:
        """Returns what the files of the run say now. Raises WanTrainerError for no run."""
        name, marks = str(directory), marks_of(directory)
        if (known := self._known_at(name, marks)) is not None:
            return known
        found = read_seen(directory, marks)
        with self._lock:
            self.reads += 1
            self._unkept[directory.parent] = self._unkept.get(directory.parent, 0) + 1
            self._known[name] = marks, found
            self._known.move_to_end(name)
            while len(self._known) > _MOST:
                self._known.popitem(last=False)
        return found

    def told(self, directories: Iterable[Path], within_s: float | None = None) -> tuple[dict[Path, SeenRun], int]:
        """Returns what the files of these runs say, and of how many it is not known yet.

        Without `within_s` that is none; else reading goes on when these seconds are over. Damaged runs are left out.
        """
        until = None if within_s is None else time.monotonic() + within_s
        found: dict[Path, SeenRun] = {}
        unread: dict[Path, Marks] = {}
        for directory in directories:
            marks = marks_of(directory)
            known = self._known_at(str(directory), marks)
            if known is None:
                unread[directory] = marks
            else:
                found[directory] = known
        while unread:
            reader = self._reading(unread)
            reader.join(None if until is None else max(0.0, until - time.monotonic()))
            for directory in [one for one in unread if one in reader.outcome]:
                del unread[directory]
                if (seen := reader.outcome[directory]) is not None:
                    found[directory] = seen
            if until is not None and time.monotonic() >= until:
                break
        return found, len(unread)

    def _known_at(self, name: str, marks: Marks) -> SeenRun | None:
        with self._lock:
            known = self._known.get(name)
        return known[1] if known is not None and known[0] == marks else None

    def _reading(self, unread: dict[Path, Marks]) -> _Reader:
        """Returns the thread that reads, which may have begun with others; one for these where none does."""
        with self._lock:
            if self._reader is None or not self._reader.is_alive():
                newest = sorted(unread, key=lambda one: max((mark[1] for mark in unread[one] if mark), default=0))
                self._reader = _Reader(newest[::-1], self.of)
                self._reader.start()
            return self._reader

    def open(self, runs: Path) -> None:
        """Learn what the file beside the runs says of them, once; nothing where it is damaged or foreign."""
        runs = Path(os.path.realpath(runs))
        if runs in self._opened:
            return
        self._opened.add(runs)
        kept = _opened(file) if (file := index_file(runs)) is not None else {}
        with self._lock:
            for run, entry in kept.items():
                self._known.setdefault(str(runs / run), entry)

    def keep(self, runs: Path, names: Iterable[str]) -> None:
        """Write what is known of these runs beside them, when there is much that is new; a full disk is no matter."""
        runs = Path(os.path.realpath(runs))
        if self._unkept.get(runs, 0) < _WORTH_KEEPING:
            return
        with self._lock:
            self._unkept[runs] = 0
            known = {name: self._known[str(runs / name)] for name in names if str(runs / name) in self._known}
        file = index_file(runs)
        with contextlib.suppress(FileError, OSError):
            if file is not None:
                atomic_write_bytes(file, _written(known), file.parent)

    def forget(self) -> None:
        """Be as a server that has just started."""
        if self._reader is not None:
            self._reader.join()
        self.__init__()


class _Reader(threading.Thread):
    """Reads runs one after the other."""

    def __init__(self, directories: Sequence[Path], read: Callable[[Path], SeenRun]) -> None:
        super().__init__(name="wan-trainer-runs", daemon=True)
        self._directories, self._read = directories, read
        self.outcome: dict[Path, SeenRun | None] = {}
        """of those that were read so far; None for a damaged one"""

    def run(self) -> None:
        for directory in self._directories:
            seen = None
            try:
                seen = self._read(directory)
            except (WanTrainerError, OSError, *DAMAGED):
                pass  # a folder of another version, a damaged one, or one that is being deleted
            except Exception:
                _log.exception("run %s cannot be listed", directory.name)
            self.outcome[directory] = seen


SEEN = SeenRuns()
"""of this process"""


def _written(known: dict[str, tuple[Marks, SeenRun]]) -> bytes:
    """The file: settings stand in it once, and of each run those in which it differs, since runs are nearly alike."""
    usual = next((run.settings for _, run in known.values()), {})
    runs: dict[str, Any] = {}
    for name, (marks, run) in known.items():
        facts = {field: getattr(run, field) for field in _FIELDS}
        facts["settings"] = {key: text for key, text in run.settings.items() if usual.get(key) != text}
        facts["settings"] |= {key: None for key in usual if key not in run.settings}
        runs[name] = [marks, list(facts.values())]
    return json.dumps({**_head(), "usual": usual, "runs": runs}, separators=(",", ":")).encode()


def _opened(file: Path) -> dict[str, tuple[Marks, SeenRun]]:
    try:
        data = read_json(file)
        if any(data.get(key) != value for key, value in _head().items()):
            return {}
        usual, found = data["usual"], {}
        for name, (marks, values) in data["runs"].items():
            facts = dict(zip(_FIELDS, values, strict=True))
            settings = usual | facts["settings"] if facts["settings"] else usual
            facts["settings"] = {key: text for key, text in settings.items() if text is not None}
            facts["experts"], facts["saves"] = tuple(facts["experts"]), tuple(facts["saves"])
            found[name] = tuple(map(tuple, marks)), SeenRun(**facts)
    except (WanTrainerError, OSError, ValueError, TypeError, LookupError, AttributeError):
        return {}
    return found


_FIELDS = tuple(field.name for field in dataclasses.fields(SeenRun))


def _head() -> dict[str, Any]:
    """Returns what must be the same for the file to be believed: a version of other code reads runs in another way."""
    return {
        "version": _FORMAT,
        "pack": __version__,
        "settings": _names_of_settings(),
        "fields": list(_FIELDS),
    }


@functools.cache
def _names_of_settings() -> list[str]:
    from ...wan_core.lora import LoraConfig
    from ...wan_core.train import TrainConfig

    return [*LoraConfig().to_dict(), *TrainConfig().to_dict()]
