"""Numbers that look random and never change: drawn from hashes of a file's content, so renaming a file, or adding
others, moves no window and no crop, and no cache entry is made again.
"""

from __future__ import annotations

import hashlib

__all__ = ["draw_different"]


def draw_different(seed: str, purpose: str, below: int, count: int) -> list[int]:
    """Up to `count` different numbers from 0 to `below` - 1; all of them where there are not more.

    A larger `count` begins with the same numbers.
    """
    wanted = min(below, count)
    found: dict[int, None] = {}
    number = 0
    while len(found) < wanted:
        digest = hashlib.blake2b(f"{seed}/{purpose}/{number}".encode(), digest_size=8).digest()
        found[int.from_bytes(digest, "big") % below] = None
        number += 1
    return list(found)
