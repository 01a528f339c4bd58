"""How often each item of a set is seen in each epoch: turns, weights and repeats in whole numbers, without any state.

An item with turns T has a say only in epochs e with e mod T = turn; its k-th such epoch is k = e // T. Repeats times
weight is a fraction p / q; the item is seen floor(((k + 1) p + s) / q) - floor((k p + s) / q) times, with s from a
hash, so that any q of its epochs in a row show it exactly p times, and not all items at once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from ..cache import CacheItem

__all__ = ["Appearances"]

_FINEST = 10_000
"""weights are fractions with no larger denominator"""


class Appearances:
    """The counts of some items."""

    def __init__(self, items: Sequence[CacheItem], seed: int) -> None:
        count = len(items)
        self._p = np.fromiter((item.repeats for item in items), np.int64, count)
        self._turn = np.fromiter((item.turn for item in items), np.int64, count)
        self._turns = np.fromiter((item.turns for item in items), np.int64, count)
        self._q, self._s = np.ones(count, np.int64), np.zeros(count, np.int64)
        for place, item in enumerate(items):
            if item.weight != 1.0:
                self._p[place], self._q[place] = _rate(item)
                self._s[place] = _phase(item, int(self._q[place]), seed)
        self.constant = bool((self._q == 1).all() and (self._turns == 1).all())
        """True when every epoch shows the same"""

    def __len__(self) -> int:
        return len(self._p)

    @property
    def mean(self) -> float:
        """Appearances of all items in an average epoch."""
        return float((self._p / self._q / self._turns).sum())

    def counts(self, first_epoch: int, epochs: int = 1) -> NDArray[np.int64]:
        """(epochs, items): how often each item is seen in each of `epochs` epochs from `first_epoch` on."""
        epoch = np.arange(first_epoch, first_epoch + epochs, dtype=np.int64)[:, None]
        k = epoch // self._turns
        seen = ((k + 1) * self._p + self._s) // self._q - (k * self._p + self._s) // self._q
        return np.where(epoch % self._turns == self._turn, seen, 0)


def _rate(item: CacheItem) -> tuple[int, int]:
    rate = item.repeats * Fraction(item.weight).limit_denominator(_FINEST)
    return max(1, rate.numerator), rate.denominator


def _phase(item: CacheItem, q: int, seed: int) -> int:
    salt = f"{seed}/weight/{item.latent_key}/{item.text_key}".encode()
    return int.from_bytes(hashlib.blake2b(salt, digest_size=8).digest(), "big") % q
