"""Which items are trained at which micro-step: a pure function of (seed, micro-step), so that any
run can resume anywhere.

Reads entries through LatentCache; knows nothing of noise, devices or the model.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import torch
from torch import Tensor

from ...errors import ConfigError
from ...model import Conditioning
from ..cache import TEXT_LENGTH, CacheItem, CacheSet, LatentCache, item_of_draw
from ..conditioning import stack_conditions

__all__ = ["Batch", "Batches", "pad_text"]

T = TypeVar("T")


@dataclass(frozen=True)
class Batch:
    """Members of one bucket, on the CPU."""

    latents: Tensor
    """(B, C, F, h, w) float32, normalised"""
    texts: Tensor
    """(B, 512, 4096) float32; rows past the real tokens are zero and are attended to, as in
    official Wan
    """
    names: tuple[str, ...]
    """file names, for messages"""
    conditioning: Conditioning | None = None
    """float32; None for models that read nothing but text"""


def pad_text(text: Tensor) -> Tensor:
    """Features (L, 4096) as (512, 4096) float32 with zero rows at the end (Wan: zero rows take part
    in attention).
    """
    padded = torch.zeros(TEXT_LENGTH, text.shape[1], dtype=torch.float32)
    padded[: text.shape[0]] = text
    return padded


class Batches:
    """All batches of a job, by micro-step.

    Each epoch every item appears `repeats` times; batches never mix buckets, and the last short
    batch of a bucket is kept. The order comes from hashing (seed, epoch, place), so it is the same
    on every Python and every machine. Rank r of w takes batches r, r + w, r + 2w ... of the endless
    sequence of epochs.
    """

    def __init__(
        self,
        cache_set: CacheSet,
        cache: LatentCache,
        *,
        seed: int,
        batch_size: int,
        rank: int = 0,
        world: int = 1,
        memory_bytes: int = 1 << 30,
    ) -> None:
        """`memory_bytes` bounds the entries kept in memory between uses."""
        cache_set.require_items()
        if batch_size < 1:
            raise ConfigError(f"batch_size is {batch_size}. Set it to 1 or more.")
        if not 0 <= rank < world:
            raise ConfigError(f"Rank {rank} of {world} does not exist. Start the ranks with torchrun.")
        self._set = cache_set
        # By key, not by name: a renamed file keeps its place in the order of training.
        self._items = tuple(sorted(cache_set.items, key=lambda item: (item.latent_key, item.text_key)))
        self._cache = cache
        self._seed = seed
        self._batch_size = batch_size
        self._rank = rank
        self._world = world
        self._memory = _Memory(memory_bytes)
        self._groups = _group_by_bucket(self._items)
        self._epoch_order = lru_cache(maxsize=2)(self._order)

    @property
    def batches_per_epoch(self) -> int:
        """Batches in one pass over the data, over all ranks."""
        return sum(-(-len(members) // self._batch_size) for members in self._groups)

    def items_at(self, micro_step: int) -> tuple[CacheItem, ...]:
        """The items this rank trains at `micro_step` (0 = first), without reading them."""
        number = micro_step * self._world + self._rank
        epoch, place = divmod(number, self.batches_per_epoch)
        return tuple(item_of_draw(self._items[index], number) for index in self._epoch_order(epoch)[place])

    def at(self, micro_step: int) -> Batch:
        """The batch of this rank at `micro_step`."""
        return self.load(self.items_at(micro_step))

    def load(self, items: Sequence[CacheItem]) -> Batch:
        """Any items of one bucket as a batch."""
        latents = [self._latent(item) for item in items]
        texts = [pad_text(self._text(item)) for item in items]
        names = tuple(item.name for item in items)
        conditioning = stack_conditions([self._condition(item) for item in items])
        return Batch(torch.stack(latents).float(), torch.stack(texts), names, conditioning)

    def evaluation_items(self, count: int) -> tuple[CacheItem, ...]:
        """The first `count` different items, for the loss on fixed noise."""
        distinct = {(item.latent_key, item.text_key): item for item in reversed(self._items)}
        return tuple(reversed(distinct.values()))[:count]

    def _order(self, epoch: int) -> tuple[tuple[int, ...], ...]:
        size = self._batch_size
        batches: list[tuple[int, ...]] = []
        for number, members in enumerate(self._groups):
            mixed = _shuffled(members, f"{self._seed}/{epoch}/{number}")
            batches += [tuple(mixed[i : i + size]) for i in range(0, len(mixed), size)]
        return tuple(_shuffled(batches, f"{self._seed}/{epoch}/batches"))

    def _latent(self, item: CacheItem) -> Tensor:
        key, shape = item.latent_key, self._set.latent_shape(item)
        return self._memory.get(f"latent/{key}", lambda: {"": self._cache.read_latent(key, shape)})[""]

    def _text(self, item: CacheItem) -> Tensor:
        key = item.text_key
        return self._memory.get(f"text/{key}", lambda: {"": self._cache.read_text(key)})[""]

    def _condition(self, item: CacheItem) -> dict[str, Tensor]:
        key, shape = item.condition_key, self._set.latent_shape(item)
        return self._memory.get(f"condition/{key}", lambda: self._cache.read_condition(key, shape)) if key else {}


class _Memory:
    """The entries used last, each a few tensors by name, up to a number of bytes."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._used = 0
        self._entries: OrderedDict[str, dict[str, Tensor]] = OrderedDict()

    def get(self, key: str, read: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
        if key in self._entries:
            self._entries.move_to_end(key)
            return self._entries[key]
        tensors = read()
        self._entries[key] = tensors
        self._used += _size(tensors)
        while self._used > self._limit and self._entries:
            self._used -= _size(self._entries.popitem(last=False)[1])
        return tensors


def _size(tensors: dict[str, Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors.values())


def _group_by_bucket(items: Sequence[CacheItem]) -> list[list[int]]:
    """Places of the items, repeated, per bucket; buckets in order of size."""
    groups: dict[object, list[int]] = {}
    for place, item in sorted(enumerate(items), key=lambda pair: (pair[1].bucket, pair[0])):
        groups.setdefault(item.bucket, []).extend([place] * item.repeats)
    return list(groups.values())


def _shuffled(members: Sequence[T], salt: str) -> list[T]:
    """`members` in an order given by hashes of their places; Python's own shuffle promises no
    stable order.
    """

    def rank(place: int) -> bytes:
        return hashlib.blake2b(f"{salt}/{place}".encode(), digest_size=16).digest()

    return [members[place] for place in sorted(range(len(members)), key=rank)]
