"""The result file of the learning bench: one JSON line a finished cell, shared by processes and machines.

`ResultFile` appends under a lock, refuses a second line of a cell, and survives a line that a crash cut off. `claimed`
keeps two processes of one machine from doing the same work.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Line = dict[str, Any]
CHOICE, CELL, JUDGE, AGAIN, STEPS, FAILED = "choice", "cell", "judge", "again", "steps", "failed"
"""kinds of lines: a seed that was tried for a concept, a training, the judge on drawn clips, a cell trained again, a
training that is judged while it goes on, a training that raised an error"""
_TRAINED = ("recipe", "rate", "concept", "seed", "steps")
ONCE = {CELL: _TRAINED, STEPS: _TRAINED, FAILED: _TRAINED, CHOICE: ("concept",), JUDGE: ("concept",)}
"""what a line is known by; a second one of its kind is refused"""


class DuplicateError(ValueError):
    """The file has this line already."""


def key_of(line: Line) -> tuple[Any, ...]:
    """Kind and values that a line is known by."""
    return (line["kind"], *(line[name] for name in ONCE[line["kind"]]))


class ResultFile:
    """Lines of the bench on disk."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def lines(self, kind: str = CELL) -> list[Line]:
        """Every complete line of a kind."""
        return [line for line in self.every() if line["kind"] == kind]

    def every(self) -> list[Line]:
        """Every complete line; one that was cut off counts as not written."""
        if not self.file.is_file():
            return []
        found: list[Line] = []
        for text in self.file.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                found.append(json.loads(text))
        return found

    def has(self, line: Line) -> bool:
        return key_of(line) in {key_of(known) for known in self.lines(line["kind"])}

    def append(self, line: Line) -> None:
        """Writes one line at once and to disk. DuplicateError where the file has it."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self.file.open("a+b") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            if line["kind"] in ONCE and self.has(line):
                raise DuplicateError(f"{self.file.name} has {key_of(line)} already. Nothing was written.")
            end = stream.seek(0, os.SEEK_END)
            cut_off = end > 0 and _last_byte(stream.fileno(), end) != b"\n"
            text = ("\n" if cut_off else "") + json.dumps(line) + "\n"
            os.write(stream.fileno(), text.encode())
            os.fsync(stream.fileno())


def _last_byte(descriptor: int, end: int) -> bytes:
    return os.pread(descriptor, 1, end - 1)


@contextlib.contextmanager
def claimed(work: Path, line: Line) -> Iterator[bool]:
    """Whether this process has the work for a line to itself; the claim ends with the block, or with the process."""
    folder = work / "claims"
    folder.mkdir(parents=True, exist_ok=True)
    name = hashlib.sha256(repr(key_of(line)).encode()).hexdigest()[:16]
    with (folder / name).open("wb") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
