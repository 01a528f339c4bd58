"""Unpacks the earlier layout of a cache folder: entries in packs, and large sets by column.

packs/<folder of a kind>-<number>-<8 hex>.pack
    magic(8) | entries, each the bytes of an entry file | index | footer(64)
    index   count x (key 32 bytes, offset u64, length u64)
    footer  index offset u64, count u64, SHA-256 of the index, zeros(8), magic(8)
sets/<fingerprint>.columns
    SHA-256 of the second line | JSON: fingerprint, and the set with one list of values per field of its items
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import CacheError, ConfigError, stop_if
from ..files import FileError, atomic_write_bytes, open_regular, remove_file, shown_folder
from .cache_set import CacheSet
from .entry import MAX_ENTRY_BYTES
from .keys import KEY, KINDS, entry_name

_MAGIC = b"WANPACK1"
_FOOTER = struct.Struct("<QQ32s8x8s")
_RECORD = struct.Struct("<32sQQ")
_PACK = re.compile(r"^([a-z]+)-\d{6}-[0-9a-f]{8}\.pack$")


@dataclass(frozen=True, kw_only=True)
class UnpackReport:
    """Counts, and damaged files that were kept."""

    entries: int
    sets: int
    unreadable: tuple[str, ...]


def require_unpacked(root: Path) -> None:
    """CacheError naming the command if the cache folder `root` is packed."""
    if _packs(root) or _column_sets(root):
        raise CacheError(
            f"The cache folder {shown_folder(root)} is packed, and packs are no longer read. Run once, in the folder "
            f"of ComfyUI-WanTrainer: python wan_core/launch.py cache unpack ../../{shown_folder(root)}"
        )


def unpack(root: Path, should_stop: Callable[[], bool] | None = None) -> UnpackReport:
    """Write packed entries and sets as files; resumes after a stop. An existing file is newer and is kept. Raises
    Stopped between entries. A pack is deleted once all its entries are files.
    """
    entries = sets = 0
    unreadable: list[str] = []
    for pack in _packs(root):
        try:
            entries += _unpack_entries(pack, root, should_stop)
        except (FileError, ValueError):
            unreadable.append(pack.name)
    for path in _column_sets(root):
        try:
            atomic_write_bytes(path.with_suffix(".json"), _set_as_json(path), root)
        except (FileError, ConfigError, ValueError, KeyError, TypeError):
            unreadable.append(path.name)
        else:
            sets += 1
            remove_file(path, root)
    return UnpackReport(entries=entries, sets=sets, unreadable=tuple(unreadable))


def _packs(root: Path) -> list[Path]:
    """Returns the packs, newest first: the newer of two equal keys wins."""
    kinds = {kind.folder for kind in KINDS.values()}
    found = (root / "packs").glob("*.pack")
    return sorted((p for p in found if (m := _PACK.match(p.name)) and m[1] in kinds), reverse=True)


def _column_sets(root: Path) -> list[Path]:
    return sorted(path for path in (root / "sets").glob("*.columns") if KEY.match(path.stem))


def _unpack_entries(pack: Path, root: Path, should_stop: Callable[[], bool] | None) -> int:
    folder, written = pack.name.partition("-")[0], 0
    kind = next(name for name, kind in KINDS.items() if kind.folder == folder)
    with open_regular(pack) as file:
        for key, offset, length in _index(file):
            stop_if(should_stop, "unpacking the cache")
            path = Path(entry_name(root, kind, key))
            if not path.is_file():
                file.seek(offset)
                # The length is bounded, because it comes from a file that may be damaged.
                data = file.read(min(length, MAX_ENTRY_BYTES))
                if len(data) != length:
                    raise ValueError("its index does not fit")
                atomic_write_bytes(path, data, root)
                written += 1
    # The pack is removed last, so that a stop before loses no entry.
    remove_file(pack, root)
    return written


def _index(file: BinaryIO) -> Iterator[tuple[str, int, int]]:
    """Yields (key in hex, offset, length) of a pack; ValueError if it is incomplete."""
    size = os.fstat(file.fileno()).st_size
    if size < len(_MAGIC) + _FOOTER.size:
        raise ValueError("it is too short")
    file.seek(size - _FOOTER.size)
    start, count, digest, magic = _FOOTER.unpack(file.read(_FOOTER.size))
    if magic != _MAGIC or start + count * _RECORD.size + _FOOTER.size != size:
        raise ValueError("it is not whole")
    file.seek(start)
    records = file.read(count * _RECORD.size)
    if hashlib.sha256(records).digest() != digest:
        raise ValueError("the checksum of its index does not match")
    for key, offset, length in _RECORD.iter_unpack(records):
        yield key.hex(), offset, length


def _set_as_json(path: Path) -> bytes:
    with open_regular(path) as file:
        digest, _, body = file.read().partition(b"\n")
    if hashlib.sha256(body).hexdigest().encode() != digest:
        raise ValueError("its checksum does not match")
    fields = json.loads(body)["set"]
    for group in ("items", "held_out"):
        if group in fields:
            fields[group] = _rows(fields[group])
    data = CacheSet.from_dict(fields, path.name)
    if data.fingerprint() != path.stem:
        raise ValueError("it is another set")
    return json.dumps(data.to_dict(), indent=2, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"


def _rows(columns: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the items of a column set: each column is {"each": values} or {"all": one value}."""
    count = int(columns.pop("count"))
    values = [column["each"] if "each" in column else [column["all"]] * count for column in columns.values()]
    return [dict(zip(columns, row, strict=True)) for row in zip(*values, strict=True)]
