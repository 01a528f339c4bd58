"""Cache sets as files under the name of their fingerprint: JSON for people, columns where there are many items."""

from __future__ import annotations

from pathlib import Path

from ..errors import CacheError, ConfigError
from ..files import FileError, atomic_write_json, read_json
from .cache_set import COLUMNS_FROM, CacheSet, read_columns, write_columns
from .keys import KEY

AGAIN = "Queue Cache Latents + Captions again; it re-encodes only what is missing."


def write_set(folder: Path, cache_set: CacheSet) -> str:
    """Store a set in the folder `sets` of a cache; returns its fingerprint. OSError or FileError when that fails."""
    fingerprint = cache_set.fingerprint()
    if len(cache_set.items) >= COLUMNS_FROM:
        write_columns(folder / f"{fingerprint}.columns", cache_set, fingerprint)
    else:
        atomic_write_json(folder / f"{fingerprint}.json", cache_set.to_dict(), folder.parent)
    return fingerprint


def set_file(folder: Path, fingerprint: str) -> Path:
    """Returns the file of `folder` that the set lies in, or would lie in as JSON."""
    columns = folder / f"{fingerprint}.columns"
    return columns if columns.is_file() else folder / f"{fingerprint}.json"


def read_set(folder: Path, fingerprint: str) -> CacheSet:
    """The set of `folder` with that fingerprint, verified against it; CacheError says what to do."""
    if not KEY.match(fingerprint):
        raise CacheError(f"{fingerprint[:100]!r} is not a cache fingerprint. {AGAIN}")
    path = set_file(folder, fingerprint)
    if not path.is_file():
        raise CacheError(f"The cache holds no set {fingerprint[:12]}. {AGAIN}")
    try:
        if path.suffix == ".columns":
            return read_columns(path, fingerprint)
        cache_set = CacheSet.from_dict(read_json(path), path.name)
    except (FileError, ConfigError, CacheError) as error:
        raise CacheError(f"Cache set {fingerprint[:12]} is damaged: {error} {AGAIN}") from error
    if cache_set.fingerprint() != fingerprint:
        raise CacheError(f"Cache set {fingerprint[:12]} was changed after it was written. {AGAIN}")
    return cache_set
