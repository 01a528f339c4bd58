"""The packs of a cache folder: many entries of one kind in one immutable file, with a sorted index at its end.

    magic(8) | entries, each as its loose file was, from multiples of 64 | index | footer(64)
    index   count x (key 32 bytes, offset u64, length u64), sorted by key
    footer  index offset u64, count u64, SHA-256 of the index, zeros(8), magic(8)

One rename publishes entries and index together. Reading the index costs 4.8 MB per 100,000 entries, once.

Others may add packs, move entries or take packs away meanwhile. A reader that misses an entry looks at the folder
again, and the new place of an entry is published before the old one goes, so it is always found in one of them.
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
import threading
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..files import FileError, atomic_write, open_regular
from ..words import logger
from .entry import MAX_ENTRY_BYTES
from .keys import KINDS

_MAGIC = b"WANPACK1"
_FOOTER = struct.Struct("<QQ32s8x8s")
_ALIGNMENT = 64
_RECORD = struct.Struct("<32sQQ")


@dataclass(frozen=True)
class Place:
    """The place of an entry in a pack."""

    path: Path
    offset: int
    length: int


class PackIndex:
    """The index of one pack. ValueError, FileError or OSError when the file is no whole pack."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with open_regular(path) as file:
            self.size = os.fstat(file.fileno()).st_size
            if self.size < len(_MAGIC) + _FOOTER.size or file.read(len(_MAGIC)) != _MAGIC:
                raise ValueError("it is no pack of ours")
            file.seek(self.size - _FOOTER.size)
            start, self.count, digest, magic = _FOOTER.unpack(file.read(_FOOTER.size))
            if magic != _MAGIC or start + self.count * _RECORD.size + _FOOTER.size != self.size:
                raise ValueError("it is not a whole pack")
            file.seek(start)
            self._records = file.read(self.count * _RECORD.size)
        if hashlib.sha256(self._records).digest() != digest:
            raise ValueError("the checksum of its index does not match")

    def find(self, key: bytes) -> Place | None:
        """Returns where the entry of that 32-byte key lies, by binary search."""
        records, size = self._records, _RECORD.size
        at = bisect_left(range(self.count), key, key=lambda i: records[i * size : i * size + 32])
        if at == self.count:
            return None
        found, offset, length = _RECORD.unpack_from(records, at * size)
        return Place(self.path, offset, length) if found == key else None

    def places(self) -> Iterator[tuple[str, Place]]:
        """Every key (hex) with its place, sorted by key."""
        for key, offset, length in _RECORD.iter_unpack(self._records):
            yield key.hex(), Place(self.path, offset, length)


def read_place(place: Place) -> bytearray:
    """The bytes of an entry; FileError or OSError when they cannot be read, ValueError when there are too few."""
    if place.length > MAX_ENTRY_BYTES:
        raise ValueError(f"it has {place.length} bytes")
    data = bytearray(place.length)
    with open(place.path, "rb", buffering=0) as file:
        file.seek(place.offset)
        done = 0
        with memoryview(data) as view:
            while done < place.length and (count := file.readinto(view[done:])):
                done += count
    if done != place.length:
        raise ValueError("its pack is shorter than its index says")
    return data


def write_pack(path: Path, entries: Iterable[tuple[str, bytes | bytearray]]) -> PackIndex:
    """Write entries (key in hex, bytes) as a pack that appears whole or not at all, and only after its bytes were
    read back; holds one entry in memory at a time.
    """
    records: list[tuple[bytes, int, int]] = []
    digests: list[bytes] = []
    with atomic_write(path, path.parent.parent) as file:
        file.write(_MAGIC)
        for key, data in entries:
            file.write(bytes(-file.tell() % _ALIGNMENT))
            records.append((bytes.fromhex(key), file.tell(), len(data)))
            digests.append(hashlib.sha256(data).digest())
            file.write(data)
        order = sorted(range(len(records)), key=lambda i: records[i])
        index = b"".join(_RECORD.pack(*records[i]) for i in order)
        file.write(bytes(-file.tell() % _ALIGNMENT))
        start = file.tell()
        file.write(index)
        file.write(_FOOTER.pack(start, len(records), hashlib.sha256(index).digest(), _MAGIC))
        file.flush()
        _verify(PackIndex(Path(file.name)), {records[i][0]: digests[i] for i in order})
    return PackIndex(path)


def _verify(index: PackIndex, digests: dict[bytes, bytes]) -> None:
    for key, digest in digests.items():
        place = index.find(key)
        if place is None or hashlib.sha256(read_place(place)).digest() != digest:
            raise FileError(f"{index.path.name} does not hold what was written. Check the disk.")


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
        """Returns where an entry lies, or None when no pack holds it."""
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
        """Looks at the folder unless it is sure that nothing changed; returns whether it looked."""
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
