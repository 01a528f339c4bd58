"""The packs of a cache folder, as readers see them: while others add packs, move entries or take packs away.

A reader that misses an entry looks at the folder again, so an entry that moves from a loose file into a pack, or from
one pack to another, is always found in one of them: the new place is published before the old one goes.
"""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path

from ...files import FileError
from ...words import logger
from .kinds import KINDS
from .pack_file import PackIndex, Place, read_place

__all__ = ["PACK_NAME", "Packs"]

_log = logger(__name__)

PACK_NAME = re.compile(r"^([a-z]+)-(\d{6})-[0-9a-f]{8}\.pack$")
"""folder of its kind and number; of two packs with one key, the one with the higher number counts"""
_SETTLED_S = 2.0
"""A folder's time is only trusted to show a change when it is so old: some systems count in seconds."""


class Packs:
    """Every pack of a cache, newest first. Safe to use from several threads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._by_kind: dict[str, list[PackIndex]] = {}
        self._unreadable: set[str] = set()
        self._seen = (-1, 0.0)
        self._lock = threading.Lock()

    def find(self, kind: str, key: str) -> Place | None:
        """Where an entry lies, or None when no pack holds it."""
        digest = bytes.fromhex(key)
        place = self._look(kind, digest)
        if place is None and self._refresh():
            place = self._look(kind, digest)
        return place

    def read(self, kind: str, key: str) -> bytearray | None:
        """The bytes of an entry, or None when no pack holds it. OSError, FileError or ValueError from the disk."""
        for _ in range(3):
            place = self.find(kind, key)
            if place is None:
                return None
            try:
                return read_place(place)
            except FileNotFoundError:  # its pack was replaced by another
                self.look_again()
        return None

    def look_again(self) -> None:
        """Forget what is known of the folder."""
        self._seen = (-1, 0.0)
        self._refresh()

    def indexes(self, kind: str) -> list[PackIndex]:
        """The packs of a kind, newest first."""
        self._refresh()
        return list(self._by_kind.get(kind, ()))

    def unreadable(self) -> list[str]:
        """Names of packs whose index cannot be read."""
        self._refresh()
        return sorted(self._unreadable)

    def _look(self, kind: str, digest: bytes) -> Place | None:
        for index in self._by_kind.get(kind, ()):
            if (place := index.find(digest)) is not None:
                return place
        return None

    def _refresh(self) -> bool:
        """Look at the folder unless it is sure that nothing changed; whether it was looked at."""
        with self._lock:
            try:
                changed = self.folder.stat().st_mtime_ns
            except FileNotFoundError:
                changed = 0
            before, at = self._seen
            if changed == before and at - changed / 1e9 > _SETTLED_S:
                return False
            self._seen = (changed, time.time())
            self._read_folder()
            return True

    def _read_folder(self) -> None:
        known = {index.path.name: index for indexes in self._by_kind.values() for index in indexes}
        found: dict[str, list[PackIndex]] = {}
        unreadable: set[str] = set()
        kinds = {kind.folder: name for name, kind in KINDS.items()}
        names = sorted((p.name for p in self.folder.iterdir()), reverse=True) if self.folder.is_dir() else []
        for name in names:
            match = PACK_NAME.match(name)
            if not match or match[1] not in kinds:
                continue
            try:
                index = known.get(name) or PackIndex(self.folder / name)
            except (FileError, OSError, ValueError) as error:
                if (self.folder / name).exists():  # else it was replaced since the folder was listed
                    _log.warning("%s is not read: %s", name, error)
                    unreadable.add(name)
                continue
            found.setdefault(kinds[match[1]], []).append(index)
        self._by_kind, self._unreadable = found, unreadable
