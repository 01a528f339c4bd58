"""The batch of each micro-step: a pure function of (seed, micro-step), so that a run can resume at any step."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from ..dataset.conditioning import stack_conditions
from ..errors import ConfigError
from ..model import TEXT_LENGTH, TEXT_STEP, Conditioning
from .cache_set import CacheItem, CacheSet
from .latent_cache import LatentCache
from .order import Order
from .synthetic import item_of_draw


@dataclass(frozen=True)
class Batch:
    """Samples of one bucket, on the CPU."""

    latents: Tensor
    """(B, C, F, h, w) float32, normalised"""
    texts: Tensor
    """(B, L, 4096) float32 from `stack_texts`; Wan also attends to the zero rows of the padding"""
    names: tuple[str, ...]
    conditioning: Conditioning | None = None
    """float32; None for text-only models"""
    loss_mask: Tensor | None = None
    """(B, 1, F, h, w) float32; None without masks"""
    class_texts: Tensor | None = None
    """(B, L, 4096) of the captions with the class word; None without any"""
    slider_texts: tuple[Tensor, ...] = ()
    """(B, L, 4096) each: the positive and the negative prompts of sliders; () without any"""

    def pinned(self) -> Batch:
        """Returns a copy in pinned memory; needs CUDA."""
        pin = Tensor.pin_memory
        given = None if self.conditioning is None else self.conditioning.each(pin)
        mask = None if self.loss_mask is None else pin(self.loss_mask)
        classes = None if self.class_texts is None else pin(self.class_texts)
        sliders = tuple(map(pin, self.slider_texts))
        return Batch(pin(self.latents), pin(self.texts), self.names, given, mask, classes, sliders)


class Weights(NamedTuple):
    """Loss weights (B,) of clips that are trained towards the base model's prediction; 0: towards their own video."""

    prior: tuple[float, ...]
    """weights for the clips' own captions"""
    of_class: tuple[float, ...]
    """additional weights for their captions with the class word"""
    slider: tuple[float, ...] = ()
    """`CacheItem.slider`, with its sign; () without any"""


def pad_text(text: Tensor) -> Tensor:
    """Returns features (L, 4096) as (512, 4096) float32, zero-padded; Wan attends to the zero rows."""
    padded = torch.zeros(TEXT_LENGTH, text.shape[1], dtype=torch.float32)
    padded[: text.shape[0]] = text
    return padded


def stack_texts(texts: Sequence[Tensor]) -> Tensor:
    """Returns the features (n, 4096) of several prompts as (B, L, 4096) float32, padded to the longest and a zero row.

    The last row stands for all missing rows up to 512 (`WanTransformer.read_texts`).
    """
    longest = max(len(text) for text in texts) + 1
    rows = min(-(-longest // TEXT_STEP) * TEXT_STEP, TEXT_LENGTH)
    stacked = torch.zeros(len(texts), rows, texts[0].shape[1])
    for row, text in zip(stacked, texts, strict=True):
        row[: len(text)] = text
    return stacked


class Batches:
    """All batches of a job, by micro-step.

    Each item appears `repeats` times in an epoch (on average, with weights or turns; see order.py). A batch has items
    of one bucket, and the last batch of a bucket may be short. The order comes from hashes of (seed, epoch, place), so
    all machines agree on it. Rank r of w gets batches r, r + w, r + 2w ... of the endless sequence.
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
        bucket_sampling: str = "proportional",
    ) -> None:
        """`memory_bytes` limits the entries kept in memory; `bucket_sampling`: one of BUCKET_SAMPLINGS."""
        cache_set.require_items()
        if batch_size < 1:
            raise ConfigError(f"batch_size is {batch_size}. Set it to 1 or more.")
        if not 0 <= rank < world:
            raise ConfigError(f"Rank {rank} of {world} does not exist. Start the ranks with torchrun.")
        self._set = cache_set
        # By key, not by name, so that renaming a file does not change the order of training.
        self._items = tuple(sorted(cache_set.items, key=lambda item: (item.latent_key, item.text_key)))
        self._cache = cache
        self._rank = rank
        self._world = world
        self._memory = _Memory(memory_bytes)
        self._order = Order(self._items, seed=seed, batch_size=batch_size, bucket_sampling=bucket_sampling)

    @property
    def batches_per_epoch(self) -> int:
        """Batches of the first epoch over all ranks; with weights or turns, later epochs may differ."""
        return self._order.batches_per_epoch

    def items_at(self, micro_step: int) -> tuple[CacheItem, ...]:
        """Returns this rank's items at `micro_step` (from 0) without reading them."""
        return self._items_of(micro_step * self._world + self._rank)

    @property
    def any_class(self) -> bool:
        """Whether an item has a caption with a class word."""
        return any(item.class_weight for item in self._items)

    @property
    def any_slider(self) -> bool:
        """Whether an item is a slider."""
        return any(item.slider for item in self._items)

    def weights_at(self, micro_step: int) -> list[Weights]:
        """Returns the weights of every rank's batch at `micro_step`."""
        numbers = range(micro_step * self._world, (micro_step + 1) * self._world)
        return [_weights(self._items_of(number)) for number in numbers]

    def _items_of(self, number: int) -> tuple[CacheItem, ...]:
        return tuple(item_of_draw(self._items[place], number) for place in self._order.batch(number))

    def at(self, micro_step: int) -> Batch:
        """Returns this rank's batch at `micro_step`."""
        return self.load(self.items_at(micro_step))

    def load(self, items: Sequence[CacheItem]) -> Batch:
        """Returns items of one bucket as a batch."""
        shape = self._set.stored_shape(items[0])  # items of one bucket have the same
        given = [self._entry("condition", item.condition_key, shape) for item in items]
        stored = [self._entry("latent", item.latent_key, shape)["latent"] for item in items]
        latents = [self._whole(latent, one) for latent, one in zip(stored, given, strict=True)]
        texts, classes = stack_texts([self._text(item.text_key) for item in items]), None
        if any(item.class_weight for item in items):
            classes = stack_texts([self._text(item.class_key or item.text_key) for item in items])
        names = tuple(item.name for item in items)
        conditioning = stack_conditions(given)
        mask = self._loss_mask(items)
        sliders = zip(*(item.slider_keys for item in items), strict=True)
        pairs = tuple(stack_texts([self._text(key) for key in keys]) for keys in sliders)
        return Batch(torch.stack(latents).float(), texts, names, conditioning, mask, classes, pairs)

    def evaluation_items(self, count: int) -> tuple[CacheItem, ...]:
        """Returns the first `count` different items for evaluation: held-out items if there are any, else trained ones.
        Prior preservation clips are omitted unless there are no others, because their loss does not show learning. A
        slider has no clips, and so no items for evaluation."""
        if self.any_slider:
            return ()
        held_out = sorted(self._set.held_out, key=lambda item: (item.latent_key, item.text_key))
        known = held_out or self._items
        taken = [item for item in known if not item.prior] or known
        distinct = {(item.latent_key, item.text_key): item for item in reversed(taken)}
        return tuple(reversed(distinct.values()))[:count]

    @property
    def largest_item(self) -> CacheItem:
        """The item with the most tokens, which needs the most memory."""
        return max(self._items, key=self._set.tokens)

    @property
    def evaluates_held_out(self) -> bool:
        """True if held-out clips are evaluated."""
        return bool(self._set.held_out)

    def evaluation_noise(self, item: CacheItem) -> dict[float, Tensor]:
        """Returns timestep -> stored noise (C, F, h, w) float32 of a held-out item; empty for a trained one."""
        key = item.evaluation_key
        return self._cache.read_evaluation(key, self._set.latent_shape(item)) if key else {}

    def _whole(self, latent: Tensor, given: dict[str, Tensor]) -> Tensor:
        """Returns a clip's latent (C, F, h, w). If the model predicts the reference image too, the image's latent is
        in front."""
        lead, before = self._set.kind.leading_frames, self._set.kind.mask
        if not lead:
            return latent
        reference = given["channels"][before : before + len(latent), :lead]
        return torch.cat([reference.to(latent.dtype), latent], dim=1)

    def _entry(self, kind: str, key: str, shape: tuple[int, ...] | None = None) -> dict[str, Tensor]:
        return self._memory.get(f"{kind}/{key}", lambda: self._cache.read(kind, key, shape)) if key else {}

    def _text(self, key: str) -> Tensor:
        return self._entry("text", key)["text"]

    def _loss_mask(self, items: Sequence[CacheItem]) -> Tensor | None:
        if not any(item.mask_key for item in items):
            return None
        lead = (0, 0, 0, 0, self._set.kind.leading_frames, 0)  # The frames of a reference image get loss weight 1.
        shape = self._set.mask_shape(items[0])
        found = [self._entry("mask", item.mask_key, shape) for item in items]
        masks = [mask["mask"] if mask else torch.ones(shape, dtype=torch.bfloat16) for mask in found]
        return functional.pad(torch.stack(masks).float(), lead, value=1.0)


def _weights(items: Sequence[CacheItem]) -> Weights:
    slider = tuple(item.slider for item in items)
    prior, of_class = tuple(item.prior for item in items), tuple(item.class_weight for item in items)
    return Weights(prior, of_class, slider if any(slider) else ())


class _Memory:
    """An LRU cache of entries, limited in bytes. Thread-safe: the batch reader and the evaluation use it."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._used = 0
        self._entries: OrderedDict[str, dict[str, Tensor]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: str, read: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key)
                return self._entries[key]
        # outside of the lock, so that the evaluation does not wait for a read of the prefetching thread
        tensors = read()
        with self._lock:
            if key not in self._entries:
                self._entries[key] = tensors
                self._used += sum(tensor.nbytes for tensor in tensors.values())
            while self._used > self._limit and self._entries:
                self._used -= sum(tensor.nbytes for tensor in self._entries.popitem(last=False)[1].values())
        return tensors
