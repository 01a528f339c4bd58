"""What is done for the cache once a dataset is encoded: leftovers go, loose entries are packed, the limit is kept."""

from __future__ import annotations

from collections.abc import Callable, Collection

from ...errors import CacheError
from ..cache import LatentCache, clean_leftovers, pack_entries, trim

__all__ = ["PACK_FROM", "tidy"]

PACK_FROM = 1_000
"""loose entries of one kind; fewer open as fast as a pack"""


def tidy(
    cache: LatentCache,
    fingerprint: str,
    *,
    limit_gb: float,
    in_use: Collection[str],
    should_stop: Callable[[], bool] | None = None,
) -> str:
    """One line for the report, empty when there was nothing to say. The set `fingerprint` and the names `in_use`
    (sets and entries of unfinished runs) are never evicted.
    """
    lines: list[str] = []
    clean_leftovers(cache)
    try:
        if moved := sum(pack_entries(cache, at_least=PACK_FROM, should_stop=should_stop).values()):
            lines.append(f"cache: {moved} entries packed")
        if limit_gb:
            lines.append(trim(cache, int(limit_gb * 2**30), keep={fingerprint, *in_use}).sentence())
    except CacheError as error:  # encoding is done, and what it made can be trained
        lines.append(f"cache: {error}")
    return "\n".join(line for line in lines if line)
