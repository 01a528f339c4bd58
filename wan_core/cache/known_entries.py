"""Knows of cache entries without reading them: which are sound, which cannot be made, which show nothing.

An entry is sound once it was written (after its check) or read, and while its file has the mark it had then: an edit,
a truncation or another file in its place is seen, also with the modification time put back (not on Windows, which keeps
no time of the last change). A disk that returns other bytes for an untouched file is not: the checksum finds that when
the entry is read, and leaves a file in `doubts/`, so that the next plan reads the entry.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Collection, Mapping
from pathlib import Path

from ..files import FileError, Memo, atomic_write_bytes, remove_file

_VERSION, _MOST = 1, 200_000
_LEAST_MEGAPIXELS = 1.0
"""less says more about loading the VAE than about encoding"""


class KnownEntries:
    """The memo of a cache folder's entries. Its names of entries are "<kind>-<key>"."""

    def __init__(self, cache_root: Path) -> None:
        self._memo = Memo(cache_root / "entries.json", _VERSION, _MOST)
        self._doubts = cache_root / "doubts"
        self._doubted: set[str] | None = None

    def is_sound(self, name: str, mark: list[int]) -> bool:
        """True when the file with that mark was found sound, and the entry could be read ever since."""
        return self._memo.get(f"sound {name}") == mark and not self._is_doubted(name)

    def note_sound(self, name: str, mark: list[int] | None) -> None:
        """Take the file with that mark for sound; None: there is no file any more."""
        self._memo.put(f"sound {name}", mark)
        if self._is_doubted(name):
            assert self._doubted is not None
            self._doubted.discard(name)
            remove_file(self._doubts / name, self._doubts.parent)

    def doubt(self, name: str) -> None:
        """Note on disk at once that an entry could not be read: also from a worker, which saves no memo."""
        with contextlib.suppress(OSError, FileError):
            atomic_write_bytes(self._doubts / name, b"", self._doubts.parent)
        if self._doubted is not None:
            self._doubted.add(name)

    def _is_doubted(self, name: str) -> bool:
        if self._doubted is None:
            try:
                self._doubted = set(os.listdir(self._doubts))
            except OSError:
                self._doubted = set()
        return name in self._doubted

    def why_unreadable(self, key: str) -> str | None:
        """Returns the reason for which an entry cannot be made; None when it can, or nobody tried. The key covers the
        bytes of the clip and how it is read, so reading it again would end the same way.
        """
        why = self._memo.get(f"unreadable {key}")
        return why if isinstance(why, str) else None

    def note_unreadable(self, tried: Collection[str], failed: Mapping[str, str]) -> None:
        """Keep why each of the keys `failed` cannot be made, and forget the reasons of the others that were tried."""
        for key in tried:
            if key in failed or self.why_unreadable(key) is not None:
                self._memo.put(f"unreadable {key}", failed[key][:300] if key in failed else None)

    def shows_nothing(self, key: str) -> bool:
        """True for a latent of noise or of one colour, as `note_shows_nothing` was told when it was encoded."""
        return self._memo.get(f"shows nothing {key}") is True

    def note_shows_nothing(self, key: str) -> None:
        """Keep that the clip of a latent shows noise or one colour."""
        self._memo.put(f"shows nothing {key}", True)

    def seconds_per_megapixel(self, space: str) -> float | None:
        """The pace of the last encoding into that latent space, decoding included; None before the first."""
        pace = self._memo.get(f"seconds per megapixel of {space}")
        return pace if isinstance(pace, float) and math.isfinite(pace) and pace > 0 else None

    def note_pace(self, space: str, seconds: float, megapixels: float) -> None:
        """Keep how long an encoding of `megapixels` of frames took, where that says something."""
        if megapixels >= _LEAST_MEGAPIXELS and seconds > 0:
            self._memo.put(f"seconds per megapixel of {space}", seconds / megapixels)

    def save(self) -> None:
        """Keep what was found for the next time."""
        self._memo.save()
