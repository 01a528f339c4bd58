"""Plans an encoding: compares the entries a dataset needs with the cache.

Planning needs the encoders' identities only, so for a complete cache no encoder is loaded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from ..dataset import Companion, Dataset, DatasetConfig, KnownFiles, Sample, held_out_digests, require_trained
from ..dataset.captions import class_caption
from ..dataset.conditioning import DEFAULT_NEGATIVE_PROMPT
from ..errors import CacheError, DatasetError, stop_if
from ..files import FileError
from ..model import LatentSpace
from .cache_set import CacheItem, CacheSet
from .encoding_report import left_out_of, require_enough
from .keys import SampleKeys, Stored, evaluation_key, text_key
from .latent_cache import LatentCache
from .unpack import require_unpacked


@dataclass(frozen=True)
class ClipTask:
    """One entry to encode from a sample's files."""

    kind: str
    """"latent", "condition" or "mask" (loss weights)"""
    key: str
    sample: Sample
    shape: tuple[int, ...]
    """shape of the clip's latent; for a mask (1, F, h, w)"""


@dataclass(frozen=True)
class TextTask:
    """One prompt to encode."""

    key: str
    text: str


@dataclass(frozen=True)
class EncodingPlan:
    """The missing entries, and the set that will be trained."""

    missing_clips: tuple[ClipTask, ...]
    missing_texts: tuple[TextTask, ...]
    cache_set: CacheSet
    reused: Mapping[str, int] = field(default_factory=dict[str, int])
    """kind -> number of cache hits"""
    damaged: int = 0
    """entries that exist but are damaged; they are encoded again"""
    stored: Mapping[str, Stored] = field(default_factory=dict[str, Stored])
    """key -> storage format"""
    unreadable: Mapping[str, str] = field(default_factory=dict[str, str])
    """key -> why the entry cannot be encoded; the set omits these clips, and `rebuild` tries them again"""
    samples: Mapping[str, Sample] = field(default_factory=dict[str, Sample])
    """key -> sample, for all samples of the dataset"""
    cache_limit_gb: float = 0.0
    """the lowest DatasetConfig.cache_limit_gb of all parts; 0: no limit"""

    @property
    def is_complete(self) -> bool:
        """True if every entry is a cache hit."""
        return not (self.missing_clips or self.missing_texts)

    def missing(self, kind: str) -> int:
        """Returns the number of missing entries of a kind."""
        return len(self.missing_texts) if kind == "text" else sum(task.kind == kind for task in self.missing_clips)

    @property
    def needs_vae(self) -> bool:
        return any(task.kind != "mask" for task in self.missing_clips)

    @property
    def needs_vision(self) -> bool:
        return self.missing("condition") > 0 and self.cache_set.kind.vision


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
    """Compare a dataset with the cache. A damaged entry counts as missing; with `rebuild` all entries do.

    An entry that this machine has written or checked is not read again unless its file has changed.
    """
    kind = dataset.kind
    if kind.vision and not vision_identity:
        raise CacheError(
            "This model also needs CLIP vision tokens of the start frames or the reference image. Connect Load CLIP "
            "Vision with clip_vision_h to clip_vision of Cache Latents + Captions."
        )
    dataset.require_captions()
    require_unpacked(cache.root)
    keys = SampleKeys(
        digest_of=_digests(cache.files, should_stop),
        kind=kind,
        fps=dataset.fps,
        space=space,
        vae_identity=vae_identity,
        text_identity=text_identity,
        vision_identity=vision_identity if kind.vision else "",
    )
    try:
        named = _name_all(dataset, keys, should_stop)
    finally:  # hashing can take minutes, so digests are stored even after a stop
        cache.files.save()
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
        vision_identity=keys.vision_identity,
        trigger_words=dataset.trigger_words,
    )
    clip_keys = () if rebuild else [key for item in cache_set.all_items for key in item.clip_keys]
    unreadable = {key: why for key in clip_keys if (why := cache.entries.why_unreadable(key)) is not None}
    lost = [clip.why for clip in left_out_of(unreadable, named.samples) if clip.whole]
    require_enough(lost, len({sample.path for sample in named.samples.values()}), finished=True)
    try:
        plan = _compare(cache_set.without(unreadable), named.samples, cache, rebuild, should_stop)
    finally:
        cache.save_known()
    limit_gb = min((p.config.cache_limit_gb for p in dataset.parts if p.config.cache_limit_gb), default=0.0)
    return replace(plan, stored=named.stored, unreadable=unreadable, samples=named.samples, cache_limit_gb=limit_gb)


def plan_prompts(cache_set: CacheSet, cache: LatentCache) -> EncodingPlan:
    """Returns the plan of a set that has prompts and no clips."""
    return _compare(cache_set, {}, cache, rebuild=False, should_stop=None)


@dataclass(frozen=True)
class _Named:
    """The items of a dataset, and key -> sample for each entry."""

    items: list[CacheItem] = field(default_factory=list[CacheItem])
    held_out: list[CacheItem] = field(default_factory=list[CacheItem])
    stored: dict[str, Stored] = field(default_factory=dict[str, Stored])
    samples: dict[str, Sample] = field(default_factory=dict[str, Sample])


def _name_all(dataset: Dataset, keys: SampleKeys, should_stop: Callable[[], bool] | None) -> _Named:
    """Returns all samples with their keys; hashes files whose digest is not in the memo."""
    named = _Named()
    evaluated = held_out_digests(dataset, keys.digest_of)
    for part in dataset.parts:
        latent = Stored(dtype=part.config.latent_dtype, compression=part.config.cache_compression)
        text = Stored(compression=part.config.cache_compression)
        for sample in part.samples:
            stop_if(should_stop, "caching")
            item = _item_of(sample, part.config, keys)
            for name in item.clip_keys:  # samples that differ only in their caption share these entries
                named.samples.setdefault(name, sample)
            named.stored.update(
                {item.latent_key: latent, item.condition_key: latent, item.text_key: text, item.class_key: text}
            )
            if evaluated and keys.digest_of(sample) in evaluated:
                named.held_out.append(replace(item, evaluation_key=evaluation_key(item.latent_key)))
            else:
                named.items.append(item)
    return named


def _item_of(sample: Sample, config: DatasetConfig, keys: SampleKeys) -> CacheItem:
    classed = class_caption(sample.caption, config.trigger_word, config.class_word)
    classed = classed if config.class_preservation else ""
    space, stride = keys.space, keys.space.spatial_stride
    streams = [file.of_sample(sample) for file in sample.context] if keys.kind.in_context else []
    return CacheItem(
        **keys.of(sample, config),
        class_weight=config.class_preservation,
        class_key=text_key(classed, keys.text_identity) if config.class_preservation else "",
        class_caption=classed,
        num_frames=sample.bucket.num_frames,
        height=sample.bucket.height,
        width=sample.bucket.width,
        repeats=sample.repeats,
        turn=sample.turn,
        turns=sample.turns,
        weight=sample.weight,
        name=sample.name,
        caption=sample.caption,
        prior=config.prior_preservation,
        references=int("references" in keys.kind.tensors),
        context=tuple(
            (space.latent_frames(size.num_frames), size.height // stride, size.width // stride) for size in streams
        ),
    )


def _digests(files: KnownFiles, should_stop: Callable[[], bool] | None) -> Callable[[Sample | Companion], str]:
    def digest_of(file: Sample | Companion) -> str:
        """Returns the SHA-256 of a file; DatasetError if it changed since the scan."""
        try:
            files.require_unchanged(file)
            return files.digest(file.path, should_stop)
        except FileError as error:
            stop_if(should_stop, "caching")
            raise DatasetError(str(error)) from error

    return digest_of


def _compare(
    cache_set: CacheSet,
    samples: dict[str, Sample],
    cache: LatentCache,
    rebuild: bool,
    should_stop: Callable[[], bool] | None,
) -> EncodingPlan:
    texts = {cache_set.empty_text_key: "", cache_set.negative_text_key: DEFAULT_NEGATIVE_PROMPT}
    texts.update({item.text_key: item.caption for item in cache_set.all_items})
    texts.update({item.class_key: item.class_caption for item in cache_set.all_items})
    for item in cache_set.all_items:
        texts.update(zip(item.slider_keys, item.slider_prompts, strict=True))
    clips: list[ClipTask] = []
    prompts: list[TextTask] = []
    reused, damaged = Counter[str](), 0
    for kind, key, shape in cache_set.entries():
        stop_if(should_stop, "caching")
        if kind == "evaluation":  # drawn by `_write_evaluations`, needs no encoder
            continue
        sound = None if rebuild else cache.holds(kind, key, shape)
        damaged += sound is False
        reused[kind] += bool(sound)
        if not sound and shape is None:
            prompts.append(TextTask(key, texts[key]))
        elif not sound and shape is not None:
            clips.append(ClipTask(kind, key, samples[key], shape))
    return EncodingPlan(tuple(clips), tuple(prompts), cache_set, reused, damaged)
