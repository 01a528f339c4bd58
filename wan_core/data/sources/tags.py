"""Captions that are lists of tags, in several orders.

The orders follow from the caption alone: the same text gives the same orders on every machine, so their encodings are
found in the cache again, and asking for more orders keeps the first ones.
"""

from __future__ import annotations

import hashlib
import math

__all__ = ["tag_orders"]


def tag_orders(caption: str, count: int, keep_tokens: int = 0) -> tuple[str, ...]:
    """Up to `count` different orders of the comma-separated tags, the first `keep_tokens` in place.

    The caption as it is when there is nothing to shuffle; fewer than `count` when there are not that many orders.
    """
    tags = [tag.strip() for tag in caption.split(",") if tag.strip()]
    kept, mixed = tags[:keep_tokens], tags[keep_tokens:]
    if count < 1 or len(mixed) < 2:
        return (caption,)
    possible = math.factorial(min(len(mixed), 10))
    orders: dict[str, None] = {}
    for number in range(16 * count + 64):  # enough for all orders of two or three tags to come up
        if len(orders) == min(count, possible):
            break
        orders.setdefault(", ".join((*kept, *_mixed(mixed, f"{caption}/{number}"))))
    return tuple(orders)


def _mixed(tags: list[str], salt: str) -> list[str]:
    def place(index: int) -> bytes:
        return hashlib.blake2b(f"{salt}/{index}".encode(), digest_size=16).digest()

    return [tags[index] for index in sorted(range(len(tags)), key=place)]
