"""The memo of cache entries: verified entries, unreadable ones, and clips of noise or one colour.

An entry is verified after it was written or read, until its file's mark changes (`file_mark`). Silent disk corruption
is not detected here; the checksum detects it on read and marks the entry in `doubts/`, so that the next plan reads it.
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
"""smallest encoding whose speed is recorded; smaller ones mostly measure loading the VAE"""


class KnownEntries:
    """The memo of a cache folder's entries, named "<kind>-<key>"."""

    def __init__(self, cache_root: Path) -> None:
        self._memo = Memo(cache_root / "entries.json", _VERSION, _MOST)
        self._doubts = cache_root / "doubts"
        self._doubted: set[str] | None = None

    def is_sound(self, name: str, mark: list[int]) -> bool:
        """Returns whether the file with that mark was verified, and has been readable since."""
        return self._memo.get(f"sound {name}") == mark and not self._is_doubted(name)

    def note_sound(self, name: str, mark: list[int] | None) -> None:
        """Record a verified file; None: the file is gone."""
        self._memo.put(f"sound {name}", mark)
        if self._is_doubted(name):
            assert self._doubted is not None
            self._doubted.discard(name)
            remove_file(self._doubts / name, self._doubts.parent)

    def doubt(self, name: str) -> None:
        """Record on disk that an entry could not be read."""
        with contextlib.suppress(OSError, FileError):
            # Stored in a separate file, because workers call this too, and only the nodes may write the memo.
            atomic_write_bytes(self._doubts / name, b"", self._doubts.parent)
        if self._doubted is not None:
            self._doubted.add(name)

    def _is_doubted(self, name: str) -> bool:
        if self._doubted is None:
            self._doubted = set()
            with contextlib.suppress(OSError):
                self._doubted.update(os.listdir(self._doubts))
        return name in self._doubted

    def why_unreadable(self, key: str) -> str | None:
        """Returns why an entry cannot be encoded; None if unknown."""
        # Never outdated: the key covers the clip's bytes and how they are read.
        why = self._memo.get(f"unreadable {key}")
        return why if isinstance(why, str) else None

    def note_unreadable(self, tried: Collection[str], failed: Mapping[str, str]) -> None:
        """Record why the keys `failed` cannot be encoded, and clear other `tried` keys."""
        for key in tried:
            if key in failed or self.why_unreadable(key) is not None:
                self._memo.put(f"unreadable {key}", failed[key][:300] if key in failed else None)

    def shows_nothing(self, key: str) -> bool:
        """Returns whether a latent's clip is noise or one colour."""
        return self._memo.get(f"shows nothing {key}") is True

    def note_shows_nothing(self, key: str) -> None:
        """Record that a latent's clip is noise or one colour."""
        self._memo.put(f"shows nothing {key}", True)

    def seconds_per_megapixel(self, space: str) -> float | None:
        """Returns the seconds per megapixel of the last encoding, decoding included; None before the first."""
        pace = self._memo.get(f"seconds per megapixel of {space}")
        return pace if isinstance(pace, float) and math.isfinite(pace) and pace > 0 else None

    def note_pace(self, space: str, seconds: float, megapixels: float) -> None:
        """Record the speed of an encoding, unless it was too small to measure."""
        if megapixels >= _LEAST_MEGAPIXELS and seconds > 0:
            self._memo.put(f"seconds per megapixel of {space}", seconds / megapixels)

    def save(self) -> None:
        """Write the memo."""
        self._memo.save()
