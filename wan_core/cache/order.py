"""The endless sequence of batches of a job, as indices into a list of items: a pure function of the seed.

Sampling is proportional or balanced. Proportional: an epoch contains each item repeats times weight times, and each
epoch has another order. Balanced: each bucket has epochs of its own, and a round takes equally many batches of each
bucket.

An item with turns T appears only in epochs e with e mod T = turn. Let k = e // T be the number of such epochs before e,
and p / q be repeats times weight. In epoch e the item appears floor(((k + 1) p + s) / q) - floor((k p + s) / q) times:
p times in any q of its epochs. The phase s comes from a hash, so that not all items appear in the same epochs. No state
is needed.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from .cache_set import CacheItem

_FINEST = 10_000
"""largest denominator of weights"""


class Appearances:
    """The number of times that each item appears in an epoch."""

    def __init__(self, items: Sequence[CacheItem], seed: int) -> None:
        count = len(items)
        self._p = np.fromiter((item.repeats for item in items), np.int64, count)
        self._turn = np.fromiter((item.turn for item in items), np.int64, count)
        self._turns = np.fromiter((item.turns for item in items), np.int64, count)
        self._q, self._s = np.ones(count, np.int64), np.zeros(count, np.int64)
        for place, item in enumerate(items):
            if item.weight != 1.0:
                rate = item.repeats * Fraction(item.weight).limit_denominator(_FINEST)
                salt = f"{seed}/weight/{item.latent_key}/{item.text_key}".encode()
                phase = int.from_bytes(hashlib.blake2b(salt, digest_size=8).digest(), "big")
                self._p[place], self._q[place] = max(1, rate.numerator), rate.denominator
                self._s[place] = phase % rate.denominator
        self.constant = bool((self._q == 1).all() and (self._turns == 1).all())
        """whether all epochs contain the same items"""

    def __len__(self) -> int:
        return len(self._p)

    @property
    def mean(self) -> float:
        """Number of appearances of all items in an average epoch."""
        return float((self._p / self._q / self._turns).sum())

    def counts(self, first_epoch: int, epochs: int = 1) -> NDArray[np.int64]:
        """Returns (epochs, items): appearances of each item in `epochs` epochs from `first_epoch`."""
        epoch = np.arange(first_epoch, first_epoch + epochs, dtype=np.int64)[:, None]
        k = epoch // self._turns
        seen = ((k + 1) * self._p + self._s) // self._q - (k * self._p + self._s) // self._q
        return np.where(epoch % self._turns == self._turn, seen, 0)


T = TypeVar("T")

BUCKET_SAMPLINGS = ("proportional", "balanced")
_BLOCK = 1 << 16
"""largest size (epochs times items) of an array of counts"""


class Order:
    """The items of the n-th batch."""

    def __init__(self, items: Sequence[CacheItem], *, seed: int, batch_size: int, bucket_sampling: str) -> None:
        if bucket_sampling not in BUCKET_SAMPLINGS:
            raise ConfigError(f'bucket_sampling "{bucket_sampling}" is unknown. Known: {", ".join(BUCKET_SAMPLINGS)}.')
        self._seed = seed
        self._groups = [
            _Group(number, places, items, seed, batch_size) for number, places in enumerate(_by_bucket(items))
        ]
        streams = [[group] for group in self._groups] if bucket_sampling == "balanced" else [self._groups]
        self._streams = [_Stream(groups, seed, mixed=len(streams) == 1) for groups in streams]
        # A round of balanced sampling is about as long as an epoch of proportional sampling.
        mean = sum(group.mean_batches for group in self._groups)
        self._share = max(1, round(mean / len(self._streams)))
        self._round = lru_cache(maxsize=2)(self._order_of_round)

    @property
    def batches_per_epoch(self) -> int:
        """Number of batches of the first epoch; with weights or turns, later epochs may differ."""
        if len(self._streams) > 1:
            return self._share * len(self._streams)
        return self._streams[0].batches_in(0)

    def batch(self, number: int) -> tuple[int, ...]:
        """Returns the indices of the items of batch `number`, from 0."""
        if len(self._streams) == 1:
            return self._streams[0].batch(number)
        turn, place = divmod(number, self._share * len(self._streams))
        stream, offset = self._round(turn)[place]
        return self._streams[stream].batch(turn * self._share + offset)

    def _order_of_round(self, turn: int) -> list[tuple[int, int]]:
        slots = [(stream, offset) for stream in range(len(self._streams)) for offset in range(self._share)]
        return _shuffled(slots, f"{self._seed}/{turn}/round")


class _Group:
    def __init__(
        self, number: int, places: Sequence[int], items: Sequence[CacheItem], seed: int, batch_size: int
    ) -> None:
        self._number, self._seed, self._batch_size = number, seed, batch_size
        self._places = np.array(places, np.int64)
        self.seen = Appearances([items[place] for place in places], seed)
        self.mean_batches = self.seen.mean / batch_size

    def batches_in(self, first_epoch: int, epochs: int) -> list[int]:
        """Returns the number of batches of each epoch, the short last one included."""
        counts = self.seen.counts(first_epoch, epochs).sum(axis=1)
        return (-(-counts // self._batch_size)).tolist()

    def batches(self, epoch: int) -> list[tuple[int, ...]]:
        members: list[int] = np.repeat(self._places, self.seen.counts(epoch)[0]).tolist()
        mixed = _shuffled(members, f"{self._seed}/{epoch}/{self._number}")
        size = self._batch_size
        return [tuple(mixed[i : i + size]) for i in range(0, len(mixed), size)]


class _Stream:
    """The endless sequence of epochs of some groups."""

    def __init__(self, groups: Sequence[_Group], seed: int, *, mixed: bool) -> None:
        self._groups, self._seed, self._mixed = groups, seed, mixed
        self._constant = all(group.seen.constant for group in groups)
        self._ends: list[int] = []  # cumulative batches of epochs 0 to n
        self._block = max(1, _BLOCK // sum(len(group.seen) for group in groups))
        self._epoch = lru_cache(maxsize=2)(self._batches)

    def batches_in(self, epoch: int) -> int:
        return sum(group.batches_in(epoch, 1)[0] for group in self._groups)

    def batch(self, number: int) -> tuple[int, ...]:
        epoch, place = self._find(number)
        return self._epoch(epoch)[place]

    def _find(self, number: int) -> tuple[int, int]:
        """Returns (epoch, index in the epoch) of a batch. With weights or turns, epochs differ in length, so their
        lengths are summed."""
        if self._constant:
            if not self._ends:
                self._ends = [self.batches_in(0)]
            return divmod(number, self._ends[0])
        while not self._ends or self._ends[-1] <= number:
            first = len(self._ends)
            total = self._ends[-1] if self._ends else 0
            epochs = min(self._block, max(16, first))
            for counts in zip(*(group.batches_in(first, epochs) for group in self._groups), strict=True):
                total += sum(counts)
                self._ends.append(total)
        epoch = bisect_right(self._ends, number)
        return epoch, number - (self._ends[epoch - 1] if epoch else 0)

    def _batches(self, epoch: int) -> list[tuple[int, ...]]:
        batches = [batch for group in self._groups for batch in group.batches(epoch)]
        return _shuffled(batches, f"{self._seed}/{epoch}/batches") if self._mixed else batches


def _by_bucket(items: Sequence[CacheItem]) -> list[list[int]]:
    """Returns the item indices of each bucket, in order of size. Items of a bucket have equal frames, height and width,
    and equal numbers and sizes of references and context streams."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for place, item in enumerate(items):
        groups.setdefault((item.num_frames, item.height, item.width, item.context, item.references), []).append(place)
    return [groups[bucket] for bucket in sorted(groups)]


def _shuffled(members: Sequence[T], salt: str) -> list[T]:
    """Returns `members` ordered by hashes: Python's own shuffle is not stable across versions."""

    def rank(place: int) -> bytes:
        return hashlib.blake2b(f"{salt}/{place}".encode(), digest_size=16).digest()

    return [members[place] for place in sorted(range(len(members)), key=rank)]
