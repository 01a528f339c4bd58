"""The upkeep of a cache: counts it, checks it, and makes room by evicting what was used longest ago.

Touches nothing but entries of this cache folder; sets, pictures and digests stay, and so does everything else.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import CacheError, Stopped
from ..files import FileError, atomic_write_bytes, clean_partials, freed_by, locked, remove_file, shown_folder
from .keys import KINDS
from .latent_cache import LatentCache

_ENTRY = re.compile(r"^[0-9a-f]{64}\.safetensors$")
_YOUNG_S = 3600.0
"""An entry of no set that is younger may belong to a set that is being encoded."""
_MARK = ".removed"


@dataclass(frozen=True, kw_only=True)
class CacheStats:
    """The contents of a cache, counted."""

    entries: dict[str, int]
    """of each kind"""
    entry_bytes: int
    sets: int


@dataclass(frozen=True, kw_only=True)
class CheckReport:
    """The findings of `check_entries`."""

    checked: int
    damaged: tuple[tuple[str, str, str], ...]
    """(kind, key, why)"""
    removed: int


@dataclass(frozen=True, kw_only=True)
class CacheRoom:
    """The bytes of a cache's entries."""

    entry_bytes: int
    spare_bytes: int
    """of entries that nothing needs"""


@dataclass(frozen=True, kw_only=True)
class TrimReport:
    """The doings of `trim`."""

    evicted: int
    freed_bytes: int
    entry_bytes: int
    """afterwards"""
    kept_over_limit: bool = False
    """True when what may not go is more than the limit"""

    def sentence(self) -> str:
        """Returns what happened, for the user; empty when nothing did."""
        if not self.evicted and not self.kept_over_limit:
            return ""
        text = f"cache: {self.evicted} entries evicted, {self.freed_bytes / 2**30:.2f} GiB freed"
        text += f", {self.entry_bytes / 2**30:.2f} GiB kept"
        return text + (" (over the limit: all of it is in use)" if self.kept_over_limit else "")


@dataclass
class _Entry:
    kind: str
    key: str
    size: int
    used: float
    young: bool


def stats_of(cache: LatentCache) -> CacheStats:
    """Counts and sizes, from the names and facts of files alone."""
    entries = list(_entries(cache))
    sets = cache.root / "sets"
    return CacheStats(
        entries={kind: sum(entry.kind == kind for entry in entries) for kind in KINDS},
        entry_bytes=sum(entry.size for entry in entries),
        sets=len(_set_names(cache)) if sets.is_dir() else 0,
    )


def check_entries(
    cache: LatentCache, *, remove: bool = False, should_stop: Callable[[], bool] | None = None
) -> CheckReport:
    """Read every entry, hash it again and compare; `remove` deletes the damaged ones, which are then encoded again."""
    damaged: list[tuple[str, str, str]] = []
    checked = 0
    for entry in list(_entries(cache)):
        if should_stop is not None and should_stop():
            raise Stopped("Stopped while checking the cache.")
        checked += 1
        try:
            cache.read_tensors(entry.kind, entry.key)
        except CacheError as error:
            if cache.has(entry.kind, entry.key):  # else it was evicted meanwhile
                damaged.append((entry.kind, entry.key, str(error)))
    removed = 0
    if remove and damaged:
        with upkeep_lock(cache):
            for kind in KINDS:
                removed += _remove(cache, kind, {key for bad, key, _ in damaged if bad == kind})[0]
    return CheckReport(checked=checked, damaged=tuple(damaged), removed=removed)


def trim(cache: LatentCache, limit_bytes: int, *, keep: Collection[str] = ()) -> TrimReport:
    """Evict entries, the least recently used first, until all together are within `limit_bytes`.

    An entry is used when a set that lists it is written, which every queue of CacheLatents does; one of no set when it
    was written itself. Entries that `keep` names, or a set that it names, are never evicted.
    """
    with upkeep_lock(cache):
        doomed, total = _doomed(cache, limit_bytes, keep)
        evicted = freed = 0
        for kind, keys in doomed.items():
            if keys:
                count, size = _remove(cache, kind, keys)
                evicted, freed = evicted + count, freed + size
    return TrimReport(evicted=evicted, freed_bytes=freed, entry_bytes=total, kept_over_limit=total > limit_bytes)


def room_of(cache: LatentCache, *, keep: Collection[str] = ()) -> CacheRoom:
    """Returns what the entries take, and how much of it `trim` to a limit of 0 would free."""
    doomed, stays = _doomed(cache, 0, keep)
    spare = sum(size for sizes in doomed.values() for size in sizes.values())
    return CacheRoom(entry_bytes=stays + spare, spare_bytes=spare)


def young_sets(cache: LatentCache) -> set[str]:
    """Returns the sets written within the last hour: who queued them may be about to train on them."""
    names = (name for name in _set_names(cache) if time.time() - _mtime(cache.root / "sets" / name) < _YOUNG_S)
    return {Path(name).stem for name in names}


def _doomed(cache: LatentCache, limit_bytes: int, keep: Collection[str]) -> tuple[dict[str, dict[str, int]], int]:
    """Returns the bytes of the entries to go, by kind and key, and how many bytes stay."""
    used, kept = _last_use(cache, keep)
    entries = list(_entries(cache, used))
    total = sum(entry.size for entry in entries)
    doomed: dict[str, dict[str, int]] = {kind: {} for kind in KINDS}
    for entry in sorted(entries, key=lambda entry: (entry.used, entry.key)):
        if total <= limit_bytes:
            break
        if entry.key not in kept and not entry.young:
            doomed[entry.kind][entry.key] = entry.size
            total -= entry.size
    return doomed, total


def removals_seen(cache: LatentCache) -> int:
    """Returns a number that changes whenever entries were removed, or one could not be read: a node that found the
    cache complete before has to run again.
    """
    return int(1000 * (_mtime(cache.root / _MARK) + _mtime(cache.root / "doubts")))


def _remove(cache: LatentCache, kind: str, keys: Collection[str]) -> tuple[int, int]:
    """(entries, bytes) gone; the caller holds the lock."""
    said, freed = b"The time of this file says when entries were last removed.\n", 0
    atomic_write_bytes(cache.root / _MARK, said, cache.root)
    for key in keys:
        path = cache.entry_path(kind, key)
        # On Windows a reader may hold it for a moment; then it stays until the next time.
        size = freed_by(path, cache.root)
        if remove_file(path, cache.root):
            freed += size
    return len(keys), freed


def _entries(cache: LatentCache, used: dict[str, float] | None = None) -> Iterator[_Entry]:
    used = used or {}
    now = time.time()
    for kind in KINDS:
        for key, facts in _files(cache.root / KINDS[kind].folder):
            young = key not in used and now - facts.st_mtime < _YOUNG_S
            yield _Entry(kind, key, facts.st_size, used.get(key, facts.st_mtime), young)


def _files(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Yields the key of every entry below the folder of a kind, and the facts of its file."""
    for shelf in sorted(os.listdir(folder)) if folder.is_dir() else []:
        if not os.path.isdir(folder / shelf):
            continue
        with os.scandir(folder / shelf) as files:
            for file in files:
                if _ENTRY.match(file.name) and file.name.startswith(shelf) and file.is_file(follow_symlinks=False):
                    with contextlib.suppress(FileNotFoundError):
                        yield file.name[:64], file.stat()


def _mtime(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _set_names(cache: LatentCache) -> list[str]:
    folder = cache.root / "sets"
    return sorted(p.name for p in folder.iterdir() if p.suffix == ".json") if folder.is_dir() else []


def _last_use(cache: LatentCache, keep: Collection[str]) -> tuple[dict[str, float], set[str]]:
    """Returns when each key was last used, and which may not go."""
    used: dict[str, float] = {}
    kept = set(keep)
    for name in _set_names(cache):
        path = cache.root / "sets" / name
        fingerprint, when = path.stem, _mtime(path)
        try:
            cache_set = cache.read_set(fingerprint)
        except CacheError:  # of another version, or damaged: it protects nothing and nobody can train on it
            continue
        keys = cache_set.entry_keys()
        for key in keys:
            used[key] = max(when, used.get(key, 0.0))
        if fingerprint in kept:
            kept |= keys
    return used, kept


def clean_leftovers(cache: LatentCache, older_than_s: float = 600.0) -> int:
    """Delete what killed writes left behind, below this cache only and once it is so old that nobody writes it; how
    many files.
    """
    folders = [cache.root, cache.root / "sets"]
    for kind in KINDS.values():
        shelf = cache.root / kind.folder
        folders += [shelf / name for name in (os.listdir(shelf) if shelf.is_dir() else ())]
    return sum(clean_partials(folder, older_than_s, cache.root) for folder in folders)


@contextlib.contextmanager
def upkeep_lock(cache: LatentCache) -> Iterator[None]:
    """Only one process at a time deletes entries; CacheError when another one does."""
    try:
        with locked(cache.root / ".lock", "The cache is being trimmed by another process. Wait.", cache.root):
            yield
    except FileError as error:
        raise CacheError(str(error)) from error
    except OSError as error:
        raise CacheError(
            f"The cache folder {shown_folder(cache.root)} cannot be written: {error.strerror}. Make room or make it "
            "writable; finished entries are kept."
        ) from error


def tidy(cache: LatentCache, fingerprint: str, *, limit_gb: float, in_use: Collection[str]) -> str:
    """One line for the report, empty when there was nothing to say. The set `fingerprint` and the names `in_use`
    (sets and entries of unfinished runs) are never evicted; `limit_gb` 0 evicts nothing.
    """
    clean_leftovers(cache)
    if not limit_gb:
        return ""
    try:
        return trim(cache, int(limit_gb * 2**30), keep={fingerprint, *in_use}).sentence()
    except CacheError as error:  # encoding is done, and what it made can be trained
        return f"cache: {error}"
