"""A long run at a glance: its curves drawn from lines taken all over its file, while somebody reads all of it.

Nothing is counted here: how many lines there are, and what is rare among them (saves, previews, marks), only reading
all of them tells.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any, BinaryIO

from ..files import FileError, open_regular
from .condensed import Condensed

_PLACES = 11
"""as a power of two: a point for each that a curve has at most"""
_PIECE_BYTES = 2 << 10
_END_BYTES = 64 << 10


def sketch(path: Path, within_s: float) -> tuple[int, dict[str, Any]]:
    """Returns from how many lines it is drawn, and `Condensed.to_dict` of them, without what they are too few for.

    Places are looked at from the coarse to the fine, so that whatever was seen when `within_s` is over lies evenly in
    the file. (0, nothing) where there is none. Its end is always among them, and the newest step with it.
    """
    condensed, seen = Condensed(), 0
    with contextlib.suppress(FileError, OSError), open_regular(path, follow_links=False) as file:
        for piece in _pieces(file, time.monotonic() + within_s):
            condensed.add(piece)
            seen += piece.count(b"\n")
    told = condensed.to_dict()
    return seen, {**told, "trained": [0.0, 0], "stages": {}, "records": []}


def _pieces(file: BinaryIO, until: float) -> list[bytes]:
    """Returns whole lines from everywhere, none twice, in the order of the file."""
    size = file.seek(0, os.SEEK_END)
    end = max(0, size - _END_BYTES)
    found = {end: _whole(file, end, _END_BYTES)}
    for number in range(1 << _PLACES):
        if time.monotonic() > until:
            break
        place = end * _reversed(number) >> _PLACES
        found[place] = found.get(place) or _whole(file, place, _PIECE_BYTES)
    pieces, reached = [], 0
    for _, (start, lines) in sorted(found.items()):
        if lines and start >= reached:
            pieces.append(lines)
            reached = start + len(lines)
    return pieces


def _reversed(number: int) -> int:
    """Returns the bits of `number` in the opposite order: 0, 1/2, 1/4, 3/4, 1/8 ... of the whole."""
    return int(f"{number:0{_PLACES}b}"[::-1], 2)


def _whole(file: BinaryIO, place: int, size: int) -> tuple[int, bytes]:
    """Returns where the whole lines among the bytes from `place` on begin, and these lines."""
    file.seek(place)
    read = file.read(size)
    start = read.find(b"\n") + 1 if place else 0
    return place + start, read[start : read.rfind(b"\n") + 1]
