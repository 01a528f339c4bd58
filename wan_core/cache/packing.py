"""Packing: loose entries into packs, and packs into packs. Nothing is deleted before what replaces it can be read.

Encoding writes loose files, so that a kill costs one entry; this moves them together afterwards. One at a time per
cache folder (a lock); readers and encoders go on meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path

from ..errors import CacheError, Stopped
from ..files import (
    FileError,
    clean_partials,
    file_mark,
    fsync_folder,
    locked,
    mark_of_facts,
    remove_file,
    shown_folder,
)
from .entry import unpack_entry
from .keys import KINDS
from .latent_cache import LatentCache
from .packs import PACK_NAME, Place, read_place, write_pack

_PACK_BYTES = 1 << 30
_ENTRY = re.compile(r"^[0-9a-f]{64}\.safetensors$")


def pack_entries(
    cache: LatentCache,
    *,
    at_least: int = 1,
    limit_bytes: int = _PACK_BYTES,
    should_stop: Callable[[], bool] | None = None,
) -> dict[str, int]:
    """Moves loose entries into packs of about `limit_bytes`; returns how many of each kind were moved.

    Kinds with fewer than `at_least` loose entries are left, and so are damaged entries. Raises Stopped between entries;
    packs finished by then stand.
    """
    moved: dict[str, int] = {}
    with upkeep_lock(cache):
        for kind in KINDS:
            loose = loose_entries(cache, kind)
            if len(loose) >= at_least:
                moved[kind] = sum(
                    _move(cache, kind, group, should_stop) for group in _groups(sorted(loose.items()), limit_bytes)
                )
    return moved


def loose_entries(cache: LatentCache, kind: str) -> dict[str, os.stat_result]:
    """Key and facts of every entry of that kind that is a file of its own."""
    found: dict[str, os.stat_result] = {}
    folder = cache.root / KINDS[kind].folder
    for shelf in sorted(os.listdir(folder)) if folder.is_dir() else []:
        if not os.path.isdir(folder / shelf):
            continue
        with os.scandir(folder / shelf) as files:
            for file in files:
                if _ENTRY.match(file.name) and file.name.startswith(shelf) and file.is_file(follow_symlinks=False):
                    with contextlib.suppress(FileNotFoundError):
                        found[file.name[:64]] = os.stat(file.path)  # DirEntry's own has no inode on Windows
    return found


def drop_from_packs(cache: LatentCache, kind: str, keys: Collection[str]) -> int:
    """Writes the packs of that kind anew without the entries `keys`; returns the bytes freed.

    The caller holds `upkeep_lock`.
    """
    freed, gone = 0, set(keys)
    for index in reversed(cache.packs.indexes(kind)):
        kept = [place for place in index.places() if place[0] not in gone]
        if len(kept) == index.count:
            continue
        before, after, path = index.size, 0, None
        if kept:
            # The old number: entries of newer packs still count before these.
            number = index.path.name.split("-")[1]
            path = _new_name(cache, kind, int(number))
            damaged: list[str] = []
            after = write_pack(path, _still_sound(kind, kept, damaged)).size
            if not damaged:
                cache.trust_pack(path)
        # On Windows a reader may hold it; then it stays until the next time, and nothing is lost or there twice.
        if remove_file(index.path, cache.root):
            freed += before - after
        elif path is not None:
            remove_file(path, cache.root)
    if cache.packs.folder.is_dir():
        fsync_folder(cache.packs.folder)
    return freed


def clean_leftovers(cache: LatentCache, older_than_s: float = 600.0) -> int:
    """Delete what killed writes left behind, below this cache only and once it is so old that nobody writes it; how
    many files.
    """
    folders = [cache.root, cache.root / "sets", cache.packs.folder]
    for kind in KINDS.values():
        shelf = cache.root / kind.folder
        folders += [shelf / name for name in (os.listdir(shelf) if shelf.is_dir() else ())]
    return sum(clean_partials(folder, older_than_s, cache.root) for folder in folders)


@contextlib.contextmanager
def upkeep_lock(cache: LatentCache) -> Iterator[None]:
    """Only one process at a time moves or deletes entries; CacheError when another one does."""
    try:
        busy = "The cache is being packed or trimmed by another process. Wait."
        with locked(cache.packs.folder / ".lock", busy, cache.root):
            cache.packs.look_again()
            yield
            cache.packs.look_again()
    except FileError as error:
        raise CacheError(str(error)) from error
    except OSError as error:
        raise CacheError(
            f"The cache folder {shown_folder(cache.root)} cannot be written: {error.strerror}. Make room or make it "
            "writable; finished entries are kept."
        ) from error


def _groups(loose: list[tuple[str, os.stat_result]], limit_bytes: int) -> Iterator[list[tuple[str, os.stat_result]]]:
    group: list[tuple[str, os.stat_result]] = []
    size = 0
    for key, facts in loose:
        if group and size + facts.st_size > limit_bytes:
            yield group
            group, size = [], 0
        group.append((key, facts))
        size += facts.st_size
    if group:
        yield group


def _move(
    cache: LatentCache, kind: str, group: list[tuple[str, os.stat_result]], should_stop: Callable[[], bool] | None
) -> int:
    """One pack of `group`; the loose files go once the pack can be read."""
    written: list[tuple[str, os.stat_result]] = []

    def sound() -> Iterator[tuple[str, bytearray]]:
        for key, facts in group:
            if should_stop is not None and should_stop():
                raise Stopped("Stopped while packing the cache.")
            if (data := _sound_bytes(cache, kind, key)) is not None:
                written.append((key, facts))
                yield key, data

    index = write_pack(_new_name(cache, kind), sound())
    if not index.count:  # all were damaged
        remove_file(index.path, cache.root)
        return 0
    cache.trust_pack(index.path)
    for key, facts in written:
        path = cache.loose_path(kind, key)
        with contextlib.suppress(FileNotFoundError, PermissionError):
            if file_mark(path) == mark_of_facts(facts):  # else it was encoded again meanwhile, and the newer one counts
                remove_file(path, cache.root)
    return len(written)


def _still_sound(kind: str, places: Iterable[tuple[str, Place]], damaged: list[str]) -> Iterator[tuple[str, bytearray]]:
    """Yields entries of a pack as they are; `damaged` receives the keys of those that cannot be used."""
    for key, place in places:
        data = read_place(place)
        if not _is_sound(kind, key, data):
            damaged.append(key)
        yield key, data


def _sound_bytes(cache: LatentCache, kind: str, key: str) -> bytearray | None:
    """The bytes of a loose entry after every check, or None."""
    try:
        data = bytearray(cache.loose_path(kind, key).read_bytes())
    except OSError:
        return None
    return data if _is_sound(kind, key, data) else None


def _is_sound(kind: str, key: str, data: bytearray) -> bool:
    try:
        unpack_entry(data, allowed=KINDS[kind].tensors, key=key, dtypes=KINDS[kind].dtypes)
    except ValueError:
        return False
    return True


def _new_name(cache: LatentCache, kind: str, number: int | None = None) -> Path:
    """A free name in the folder of packs."""
    folder = KINDS[kind].folder
    if number is None:
        names = (PACK_NAME.match(name) for name in os.listdir(cache.packs.folder))
        number = 1 + max((int(m[2]) for m in names if m and m[1] == folder), default=0)
    return cache.packs.folder / f"{folder}-{number:06d}-{secrets.token_hex(4)}.pack"
