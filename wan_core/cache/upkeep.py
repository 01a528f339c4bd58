"""Cache upkeep: counts and checks entries, and evicts the least recently used ones.

Only entries are deleted, never sets, pictures or memos.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import CacheError, stop_if
from ..files import FileError, atomic_write_bytes, clean_partials, freed_by, locked, remove_file, shown_folder
from .keys import KINDS
from .latent_cache import LatentCache

_ENTRY = re.compile(r"^[0-9a-f]{64}\.safetensors$")
_YOUNG_S = 3600.0
"""age in seconds up to which an entry outside of all sets may belong to a running encoding"""
_MARK = ".removed"


@dataclass(frozen=True, kw_only=True)
class CacheStats:
    """Counts of a cache."""

    entries: dict[str, int]
    """kind -> number of entries"""
    entry_bytes: int
    sets: int


@dataclass(frozen=True, kw_only=True)
class CheckReport:
    """The result of `check_entries`."""

    checked: int
    damaged: tuple[tuple[str, str, str], ...]
    """(kind, key, why)"""
    removed: int


@dataclass(frozen=True, kw_only=True)
class TrimReport:
    """The result of `trim`."""

    evicted: int
    freed_bytes: int
    entry_bytes: int
    """after trimming"""
    kept_over_limit: bool = False
    """True if the entries in use exceed the limit"""

    def sentence(self) -> str:
        """Returns the result as a sentence; "" if nothing was removed."""
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
    """Count the entries without reading them."""
    entries = list(_entries(cache))
    return CacheStats(
        entries={kind: sum(entry.kind == kind for entry in entries) for kind in KINDS},
        entry_bytes=sum(entry.size for entry in entries),
        sets=len(_set_names(cache)),
    )


def check_entries(
    cache: LatentCache, *, remove: bool = False, should_stop: Callable[[], bool] | None = None
) -> CheckReport:
    """Read and verify every entry; `remove` deletes damaged ones, which are then encoded again."""
    damaged: list[tuple[str, str, str]] = []
    entries = list(_entries(cache))
    for entry in entries:
        stop_if(should_stop, "checking the cache")
        try:
            cache.read_tensors(entry.kind, entry.key)
        except CacheError as error:
            if cache.has(entry.kind, entry.key):  # An entry that is missing may have been evicted after it was listed.
                damaged.append((entry.kind, entry.key, str(error)))
    removed = 0
    if remove and damaged:
        with upkeep_lock(cache):
            removed = _remove(cache, [(kind, key) for kind, key, _ in damaged])[0]
    return CheckReport(checked=len(entries), damaged=tuple(damaged), removed=removed)


def trim(cache: LatentCache, limit_bytes: int, *, keep: Collection[str] = ()) -> TrimReport:
    """Evict least recently used entries until the total is within `limit_bytes`.

    The last use of an entry is when a set with it was last written (each CacheLatents does that), or for an entry in no
    set, when the entry was written. Entries in `keep`, and entries of sets in `keep`, are never evicted.
    """
    with upkeep_lock(cache):
        doomed, total = _doomed(cache, limit_bytes, keep)
        evicted, freed = _remove(cache, [(entry.kind, entry.key) for entry in doomed]) if doomed else (0, 0)
    return TrimReport(evicted=evicted, freed_bytes=freed, entry_bytes=total, kept_over_limit=total > limit_bytes)


def room_of(cache: LatentCache, *, keep: Collection[str] = ()) -> tuple[int, int]:
    """Returns the bytes of all entries, and the bytes that `trim` to 0 would free."""
    doomed, stays = _doomed(cache, 0, keep)
    spare = sum(entry.size for entry in doomed)
    return stays + spare, spare


def young_sets(cache: LatentCache) -> set[str]:
    """Returns the sets written within the last hour, whose training may start soon."""
    names = (name for name in _set_names(cache) if time.time() - _mtime(cache.root / "sets" / name) < _YOUNG_S)
    return {Path(name).stem for name in names}


def _doomed(cache: LatentCache, limit_bytes: int, keep: Collection[str]) -> tuple[list[_Entry], int]:
    """Returns the entries to evict, and the remaining bytes."""
    used, kept = _last_use(cache, keep)
    entries = list(_entries(cache, used))
    total, doomed = sum(entry.size for entry in entries), list[_Entry]()
    for entry in sorted(entries, key=lambda entry: (entry.used, entry.key)):
        if total <= limit_bytes:
            break
        if entry.key not in kept and not entry.young:
            doomed.append(entry)
            total -= entry.size
    return doomed, total


def removals_seen(cache: LatentCache) -> int:
    """Returns a number that changes when entries are removed or found unreadable, so that caching nodes run again."""
    return int(1000 * (_mtime(cache.root / _MARK) + _mtime(cache.root / "doubts")))


def _remove(cache: LatentCache, entries: Collection[tuple[str, str]]) -> tuple[int, int]:
    """Returns (entries, bytes) removed of (kind, key); the caller holds the lock."""
    # This file is written first: if the process is killed below, caching nodes must still notice the missing entries.
    said, freed = b"The time of this file says when entries were last removed.\n", 0
    atomic_write_bytes(cache.root / _MARK, said, cache.root)
    for kind, key in entries:
        path = cache.entry_path(kind, key)
        # Windows cannot remove a file that a reader has open; the next eviction tries again.
        size = freed_by(path, cache.root)
        if remove_file(path, cache.root):
            freed += size
    return len(entries), freed


def _entries(cache: LatentCache, used: dict[str, float] | None = None) -> Iterator[_Entry]:
    used = used or {}
    now = time.time()
    for kind in KINDS:
        for key, facts in _files(cache.root / KINDS[kind].folder):
            young = key not in used and now - facts.st_mtime < _YOUNG_S
            yield _Entry(kind, key, facts.st_size, used.get(key, facts.st_mtime), young)


def _files(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
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
    """Returns key -> time of last use, and the keys in use."""
    used: dict[str, float] = {}
    kept = set(keep)
    for name in _set_names(cache):
        path = cache.root / "sets" / name
        fingerprint, when = path.stem, _mtime(path)
        try:
            cache_set = cache.read_set(fingerprint)
        except CacheError:  # a damaged set, or one of another version, cannot be trained on and protects no entry
            continue
        keys = cache_set.entry_keys()
        for key in keys:
            used[key] = max(when, used.get(key, 0.0))
        if fingerprint in kept:
            kept |= keys
    return used, kept


def clean_leftovers(cache: LatentCache, older_than_s: float = 600.0) -> int:
    """Delete staged files left by killed processes; returns their number."""
    folders = [cache.root, cache.root / "sets"]
    for kind in KINDS.values():
        shelf = cache.root / kind.folder
        folders += [shelf / name for name in (os.listdir(shelf) if shelf.is_dir() else ())]
    return sum(clean_partials(folder, older_than_s, cache.root) for folder in folders)


@contextlib.contextmanager
def upkeep_lock(cache: LatentCache) -> Iterator[None]:
    """Exclusive lock for deleting entries; CacheError if another process holds it."""
    try:
        with locked(cache.root / ".lock", "The cache is being trimmed by another process. Wait.", cache.root):
            yield
    except FileError as error:
        raise CacheError(str(error)) from error
    except OSError as error:
        raise CacheError(
            f"The cache folder {shown_folder(cache.root)} cannot be written: {error.strerror}. Free disk space or make "
            "it writable; finished entries are kept."
        ) from error


def tidy(cache: LatentCache, fingerprint: str, *, limit_gb: float, in_use: Collection[str]) -> str:
    """Trim the cache after an encoding; returns a report line, or "". The set `fingerprint` and `in_use` (sets and
    entries of unfinished runs) are kept; `limit_gb` 0 evicts nothing.
    """
    clean_leftovers(cache)
    if not limit_gb:
        return ""
    try:
        return trim(cache, int(limit_gb * 2**30), keep={fingerprint, *in_use}).sentence()
    except CacheError as error:  # The encoding is complete, so a failed eviction is only reported.
        return f"cache: {error}"
