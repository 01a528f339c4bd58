"""The plan of an encoding: the entries a dataset needs, compared with those the cache holds.

Planning needs no encoder, only the names of their weights, so a complete cache loads none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from ..dataset import Dataset, Sample, held_out_digests
from ..dataset.conditioning import DEFAULT_NEGATIVE_PROMPT
from ..errors import CacheError, DatasetError
from ..model import ConditionKind, LatentSpace
from .cache_set import CacheItem, CacheSet
from .entry_names import EntryNames, stop_if, stored_of
from .evaluation import evaluation_key, require_trained
from .keys import Stored, text_key
from .latent_cache import LatentCache
from .unpack import require_unpacked
from .unreadable import keys_of, left_out_of, require_enough, without


@dataclass(frozen=True)
class _ClipTask:
    """One entry to make from the files of one clip."""

    key: str
    sample: Sample
    shape: tuple[int, ...]
    """of the clip's latent; of a mask, (1, F, h, w)"""


class LatentTask(_ClipTask):
    """The task that makes the latent of a sample."""


class ConditionTask(_ClipTask):
    """Its conditioning: from its own frames, or from a control or mask file beside it."""


class MaskTask(_ClipTask):
    """The weights of its loss, from the mask beside it."""


@dataclass(frozen=True)
class TextTask:
    """One prompt to encode."""

    key: str
    text: str


@dataclass(frozen=True)
class EncodingPlan:
    """The missing entries, and the set the job will train on once they are there."""

    missing_latents: tuple[LatentTask, ...]
    missing_texts: tuple[TextTask, ...]
    cache_set: CacheSet
    latents_reused: int
    texts_reused: int
    missing_conditions: tuple[ConditionTask, ...] = ()
    conditions_reused: int = 0
    missing_masks: tuple[MaskTask, ...] = ()
    masks_reused: int = 0
    damaged: int = 0
    """entries that exist but cannot be used; they are among the missing and will be replaced"""
    stored: Mapping[str, Stored] = field(default_factory=dict[str, Stored])
    """how each entry is written, by key; others as ever"""
    unreadable: Mapping[str, str] = field(default_factory=dict[str, str])
    """why entries could not be made before, by their names: their clips are not in the set; `rebuild` tries again"""
    samples: Mapping[str, Sample] = field(default_factory=dict[str, Sample])
    """every sample that was asked for, by the names of its entries, the unreadable ones too"""
    cache_limit_gb: float = 0.0
    """DatasetConfig.cache_limit_gb, the lowest of all parts; 0 = none"""

    @property
    def is_complete(self) -> bool:
        """True when nothing has to be encoded."""
        return not (self.missing_latents or self.missing_texts or self.missing_conditions or self.missing_masks)

    @property
    def needs_vae(self) -> bool:
        """True when clips or what they are conditioned on have to go through the VAE."""
        return bool(self.missing_latents or self.missing_conditions)

    @property
    def needs_vision(self) -> bool:
        """True when given frames have to go through the CLIP vision encoder."""
        return bool(self.missing_conditions) and self.cache_set.kind.vision


def plan_encoding(
    dataset: Dataset,
    cache: LatentCache,
    *,
    vae_identity: str,
    text_identity: str,
    vision_identity: str = "",
    space: LatentSpace,
    rebuild: bool = False,
    should_stop: Callable[[], bool] | None = None,
) -> EncodingPlan:
    """Compare a dataset with the cache. A damaged entry counts as missing; what was written or checked here and has not
    changed since is not read for that.

    What each clip is conditioned on follows from the dataset's model. `rebuild` treats every entry as missing.
    """
    kind = dataset.kind
    _require_makeable(kind, vision_identity)
    dataset.require_captions()
    require_unpacked(cache.root)
    names = EntryNames(
        files=cache.files,
        kind=kind,
        fps=dataset.fps,
        space=space,
        vae_identity=vae_identity,
        text_identity=text_identity,
        vision_identity=vision_identity if kind.vision else "",
        should_stop=should_stop,
    )
    named = _name_all(dataset, names)
    require_trained(dataset, len(named.items), len(named.held_out))
    cache_set = CacheSet(
        items=tuple(named.items),
        held_out=tuple(named.held_out),
        empty_text_key=text_key("", text_identity),
        negative_text_key=text_key(DEFAULT_NEGATIVE_PROMPT, text_identity),
        latent_space=space.name,
        fps=dataset.fps,
        vae_identity=vae_identity,
        text_identity=text_identity,
        conditioning=kind.name,
        vision_identity=names.vision_identity,
        trigger_words=dataset.trigger_words,
    )
    keys = () if rebuild else [key for item in cache_set.all_items for key in keys_of(item)]
    unreadable = {key: why for key in keys if (why := cache.entries.why_unreadable(key)) is not None}
    lost = [clip.why for clip in left_out_of(unreadable, named.samples) if clip.whole]
    require_enough(lost, len({sample.path for sample in named.samples.values()}), finished=True)
    try:
        plan = _compare(without(cache_set, unreadable), named.samples, cache, rebuild, should_stop)
    finally:
        cache.save_known()
    limits = [part.config.cache_limit_gb for part in dataset.parts if part.config.cache_limit_gb]
    return replace(
        plan,
        stored=named.stored,
        unreadable=unreadable,
        samples=named.samples,
        cache_limit_gb=min(limits, default=0.0),
    )


@dataclass(frozen=True)
class _Named:
    """The samples of a dataset under the names of their entries."""

    items: list[CacheItem] = field(default_factory=list[CacheItem])
    held_out: list[CacheItem] = field(default_factory=list[CacheItem])
    stored: dict[str, Stored] = field(default_factory=dict[str, Stored])
    samples: dict[str, Sample] = field(default_factory=dict[str, Sample])


def _name_all(dataset: Dataset, names: EntryNames) -> _Named:
    """Reads what has to be read of every file for its names, and saves what was read, even when it is stopped."""
    named = _Named()
    try:
        evaluated = held_out_digests(dataset, names.digest_of)
        for part in dataset.parts:
            for sample in part.samples:
                stop_if(names.should_stop)
                digest = names.digest_of(sample)
                item = names.item_of(sample, part.config, digest)
                for name in keys_of(item):
                    named.samples.setdefault(name, sample)
                named.stored.update(stored_of(item, part.config))
                if digest in evaluated:
                    named.held_out.append(replace(item, evaluation_key=evaluation_key(item.latent_key)))
                else:
                    named.items.append(item)
    finally:
        names.files.save()
    return named


def _require_makeable(kind: ConditionKind, vision_identity: str) -> None:
    if not kind.makeable:
        raise DatasetError(
            f"This model is conditioned on {' and '.join(kind.tensors)} tensors ({kind.name}), which no node makes "
            "yet. Choose another model, or write them with LatentCache.write_condition."
        )
    if kind.vision and not vision_identity:
        raise CacheError(
            "This model (Wan 2.1 image-to-video) also reads CLIP vision tokens of the given frames. Connect "
            "Load CLIP Vision with clip_vision_h to clip_vision of Cache Latents + Captions."
        )


def _compare(
    cache_set: CacheSet,
    samples: dict[str, Sample],
    cache: LatentCache,
    rebuild: bool,
    should_stop: Callable[[], bool] | None,
) -> EncodingPlan:
    shapes = {item.latent_key: cache_set.latent_shape(item) for item in cache_set.all_items}
    texts = {cache_set.empty_text_key: "", cache_set.negative_text_key: DEFAULT_NEGATIVE_PROMPT}
    texts.update({item.text_key: item.caption for item in cache_set.all_items})
    conditions = {item.condition_key: item.latent_key for item in cache_set.all_items if item.condition_key}
    masks = {item.mask_key: cache_set.mask_shape(item) for item in cache_set.all_items if item.mask_key}
    damaged = 0

    def is_missing(kind: str, key: str, shape: tuple[int, ...] | None = None) -> bool:
        nonlocal damaged
        stop_if(should_stop)
        sound = None if rebuild else cache.holds(kind, key, shape)
        damaged += sound is False
        return not sound

    latents = [
        LatentTask(key, samples[key], shape) for key, shape in shapes.items() if is_missing("latent", key, shape)
    ]
    given = [
        ConditionTask(key, samples[key], shapes[clip])
        for key, clip in conditions.items()
        if is_missing("condition", key, shapes[clip])
    ]
    weights = [MaskTask(key, samples[key], shape) for key, shape in masks.items() if is_missing("mask", key, shape)]
    prompts = [TextTask(key, text) for key, text in texts.items() if is_missing("text", key)]
    return EncodingPlan(
        tuple(latents),
        tuple(prompts),
        cache_set,
        latents_reused=len(shapes) - len(latents),
        texts_reused=len(texts) - len(prompts),
        missing_conditions=tuple(given),
        conditions_reused=len(conditions) - len(given),
        missing_masks=tuple(weights),
        masks_reused=len(masks) - len(weights),
        damaged=damaged,
    )
