"""Encode once: puts what a plan found missing into the cache. Every finished entry stays, whatever stops the rest."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ..dataset import Companion, Progress, Sample, TextLengths, read_sample
from ..dataset.conditioning import loss_mask, name_of
from ..errors import CacheError
from ..model.latents import ImageEncoder, LatentCodec, TextEncoder
from ..video import UnreadableError, VideoProcess
from .cache_set import CacheSet
from .condition import condition_from_files, mask_pixels
from .encoding_plan import ConditionTask, EncodingPlan, LatentTask, MaskTask, TextTask, require_unchanged, stop_if
from .evaluation import write_evaluations
from .keys import Stored
from .latent_cache import LatentCache
from .memos import EncodingSpeed
from .text_lengths import TextCounter, length_sentences
from .unreadable import UnreadableMemo, left_out_lines, require_enough, without
from .upkeep import tidy

__all__ = ["EncodingReport", "encode_missing"]


@dataclass(frozen=True, kw_only=True)
class EncodingReport:
    """What was done."""

    fingerprint: str
    """names the stored set"""
    latents_encoded: int
    latents_reused: int
    texts_encoded: int
    texts_reused: int
    clips: int
    """items of the set: clips and stills"""
    frames: int
    """pixel frames of all items"""
    damaged: int
    seconds: float
    outdated: int = 0
    """clips that were in the cache as an older version of the pack read them, and were encoded again"""
    conditioning: str = "none"
    """ConditionKind.name of the set"""
    conditions_encoded: int = 0
    conditions_reused: int = 0
    stills: int = 0
    """items of one frame"""
    text_lengths: TextLengths | None = None
    """of the captions encoded this time; None when none was, or the encoder cannot count"""
    masks_encoded: int = 0
    masks_reused: int = 0
    black_masks: tuple[str, ...] = ()
    """names of clips encoded now whose mask leaves nothing to train"""
    held_out: int = 0
    """further clips that are not trained but evaluated"""
    upkeep: str = ""
    """what was done for the cache itself"""
    left_out: tuple[str, ...] = ()
    """a sentence about each clip that cannot be read to its end; the set is without them"""

    def sentences(self) -> str:
        """Plain text for the node."""
        lines = [
            f"{self.clips} items, {self.frames} frames",
            *left_out_lines(self.left_out),
            f"latents: {self.latents_encoded} encoded, {self.latents_reused} reused",
            f"texts: {self.texts_encoded} encoded, {self.texts_reused} reused "
            "(captions, the empty prompt and the default negative prompt)",
        ]
        if self.conditioning != "none":
            counts = f"{self.conditions_encoded} encoded, {self.conditions_reused} reused"
            what = "given frames" if self.conditioning.startswith("first") else "control and mask files"
            lines.append(f"{what} ({self.conditioning}): {counts}")
            if self.stills and self.conditioning.startswith("first"):
                lines.append(f"stills: {self.stills}, each given whole as its own first frame")
        lines += length_sentences(self.text_lengths)
        if self.masks_encoded or self.masks_reused:
            lines.append(f"loss masks: {self.masks_encoded} encoded, {self.masks_reused} reused")
        if self.black_masks:
            lines.append(f"masks without any white, nothing is trained there: {', '.join(self.black_masks[:8])}")
        if self.held_out:
            lines.append(f"held out for evaluation: {self.held_out}")
        lines.append(f"{self.seconds:.1f} s")
        if self.damaged:
            lines.append(f"{self.damaged} damaged cache entries were replaced")
        if self.outdated:
            lines.append(
                f"encoded again: {self.outdated}, cached by an older version that read clips up to 3 of 255 levels too "
                "dark. What was trained on the old latents keeps them: such a run continues from its own folder, here "
                "a new one begins"
            )
        if self.upkeep:
            lines.append(self.upkeep)
        return "\n".join(lines)


def encode_missing(
    plan: EncodingPlan,
    cache: LatentCache,
    *,
    codec: LatentCodec | None,
    text_encoder: TextEncoder | None,
    image_encoder: ImageEncoder | None = None,
    video: VideoProcess,
    progress: Progress | None = None,
    should_stop: Callable[[], bool] | None = None,
    in_use: Collection[str] = (),
) -> EncodingReport:
    """Encode what is missing, one text or clip at a time, then store the set and look after the cache.

    `in_use` names sets and entries that a size limit must not evict, beside this set.

    An encoder may be None when nothing is missing on its side. Raises Stopped between two units of
    work.
    """
    start = time.monotonic()
    _check_encoders(plan, codec, text_encoder, image_encoder)
    work: list[TextTask | LatentTask | ConditionTask | MaskTask] = [*plan.missing_texts, *_by_clip(plan)]
    doing = _Doing(plan, cache, codec, text_encoder, image_encoder, _Clips(video, plan.cache_set.fps))
    counter = TextCounter(plan, text_encoder)
    try:
        for done, task in enumerate(work, 1):
            stop_if(should_stop)
            if isinstance(task, TextTask):
                name = doing.text(task)
                counter.add(task)
            else:
                name = doing.clip_unless_unreadable(task)
            if progress is not None:
                progress(done, len(work), name)
    finally:
        doing.remember_unreadable()
    doing.require_enough(finished=True)
    EncodingSpeed(cache.root).remember(plan.cache_set.latent_space, doing.vae_s, doing.megapixels)
    kept = without(plan.cache_set, doing.failed)
    write_evaluations(cache, kept)
    fingerprint = cache.write_set(kept)
    report = _report(plan, kept, fingerprint, time.monotonic() - start)
    report = replace(report, latents_encoded=report.latents_encoded - doing.failed_latents)
    upkeep = tidy(cache, fingerprint, limit_gb=plan.cache_limit_gb, in_use=in_use, should_stop=should_stop)
    reasons = (*plan.unreadable.values(), *(str(error) for error in doing.failed.values()))
    return replace(
        report,
        upkeep=upkeep,
        black_masks=tuple(doing.black),
        text_lengths=counter.lengths(),
        left_out=tuple(dict.fromkeys(reasons)),
    )


@dataclass
class _Doing:
    """Makes and stores one entry after the other; knows how long the VAE took for how much."""

    plan: EncodingPlan
    cache: LatentCache
    codec: LatentCodec | None
    text_encoder: TextEncoder | None
    image_encoder: ImageEncoder | None
    clips: _Clips
    vae_s: float = 0.0
    megapixels: float = 0.0
    black: list[str] = field(default_factory=list[str])
    failed: dict[str, UnreadableError] = field(default_factory=dict[str, UnreadableError])
    """by the name of the entry that could not be made"""
    _tried: dict[str, Sample] = field(default_factory=dict[str, Sample])

    def text(self, task: TextTask) -> str:
        """Encode one prompt; returns what progress calls it."""
        assert self.text_encoder is not None
        name = task.text[:60]
        self.cache.write_text(
            task.key, self.text_encoder.encode(task.text), name or "the empty prompt", self._stored(task)
        )
        return name_of(task.text)

    def clip_unless_unreadable(self, task: LatentTask | ConditionTask | MaskTask) -> str:
        """Make one entry of a clip, or note why it cannot be read; returns its file name."""
        if any(self._tried[key] is task.sample for key in self.failed):
            return task.sample.name
        self._tried[task.key] = task.sample
        try:
            self.clip(task)
        except UnreadableError as error:
            self.failed[task.key] = error
            self.require_enough(finished=False)
        return task.sample.name

    def require_enough(self, *, finished: bool) -> None:
        """DatasetError when most clips cannot be read."""
        tried = len({id(sample) for sample in self._tried.values()}) + self.plan.latents_reused
        require_enough([str(error) for error in self.failed.values()], tried, finished=finished)

    @property
    def failed_latents(self) -> int:
        """Clips whose latent was to be made and could not."""
        return sum(task.key in self.failed for task in self.plan.missing_latents)

    def remember_unreadable(self) -> None:
        """Keep what need not be tried again."""
        lasting = {key: str(error) for key, error in self.failed.items() if error.lasting}
        UnreadableMemo(self.cache.root).remember(self._tried, lasting)

    def clip(self, task: LatentTask | ConditionTask | MaskTask) -> str:
        """Make one entry of a clip; returns its file name."""
        start, sample = time.monotonic(), task.sample
        if isinstance(task, MaskTask):
            self._mask(task)
            return sample.name
        assert self.codec is not None
        if isinstance(task, LatentTask):
            latent = _encode(task, self.clips.pixels(sample), self.codec)
            self.cache.write_latent(task.key, latent, sample.name, self._stored(task))
        else:
            kind = self.plan.cache_set.kind
            given = condition_from_files(sample, kind, self.clips.pixels, self.codec, self.image_encoder)
            self.cache.write_condition(task.key, given, sample.name, self._stored(task))
        passes = 1 if isinstance(task, LatentTask) else self.plan.cache_set.kind.vae_passes
        bucket = sample.bucket
        self.megapixels += passes * bucket.num_frames * bucket.height * bucket.width / 1e6
        self.vae_s += time.monotonic() - start
        return sample.name

    def _stored(self, task: TextTask | LatentTask | ConditionTask) -> Stored | None:
        return self.plan.stored.get(task.key)

    def _mask(self, task: MaskTask) -> None:
        mask = mask_pixels(task.sample, self.clips.pixels)
        weights = loss_mask(mask, self.plan.cache_set.space.spatial_stride)
        self.cache.write_mask(task.key, weights, task.sample.name)
        if not bool(weights.any()):
            self.black.append(task.sample.name)


def _by_clip(plan: EncodingPlan) -> list[LatentTask | ConditionTask | MaskTask]:
    """The tasks of one clip beside each other, so that it is decoded once."""
    tasks: list[LatentTask | ConditionTask | MaskTask] = [
        *plan.missing_latents,
        *plan.missing_conditions,
        *plan.missing_masks,
    ]
    order = {item.latent_key: place for place, item in enumerate(plan.cache_set.all_items)}
    order |= {item.condition_key: order[item.latent_key] for item in plan.cache_set.all_items}
    order |= {item.mask_key: order[item.latent_key] for item in plan.cache_set.all_items}
    return sorted(tasks, key=lambda task: order[task.key])


class _Clips:
    """Decodes clips and the files that go with them; remembers the last clip."""

    def __init__(self, video: VideoProcess, fps: float) -> None:
        self._video, self._fps = video, fps
        self._last: tuple[Sample, Tensor] | None = None

    def pixels(self, sample: Sample, companion: Companion | None = None) -> Tensor:
        """(F, H, W, 3) float32 in [0, 1] of a sample, or of a file that goes with it, cut alike."""
        if companion is not None:
            return self._decode(sample, companion)
        if self._last is None or self._last[0] is not sample:
            self._last = sample, self._decode(sample, sample)
        return self._last[1]

    def _decode(self, sample: Sample, file: Sample | Companion) -> Tensor:
        try:
            frames = read_sample(self._video, sample, self._fps, file.path)
        finally:
            require_unchanged(file)
        return torch.from_numpy(frames).float() / 255  # pyright: ignore[reportUnknownMemberType]


def _encode(task: LatentTask, pixels: Tensor, codec: LatentCodec) -> Tensor:
    latent = codec.encode(pixels)
    if tuple(latent.shape) != task.shape:
        raise CacheError(
            f"The VAE returned shape {list(latent.shape)} for {task.sample.name}; "
            f"{list(task.shape)} was expected. Choose the VAE that belongs to the model."
        )
    return latent


def _check_encoders(
    plan: EncodingPlan,
    codec: LatentCodec | None,
    text_encoder: TextEncoder | None,
    image_encoder: ImageEncoder | None,
) -> None:
    wanted = plan.cache_set
    if plan.needs_vae:
        if codec is None:
            count = len(plan.missing_latents) or len(plan.missing_conditions)
            raise CacheError(f"{count} latents are missing. Connect a VAE to CacheLatents.")
        if codec.identity != wanted.vae_identity or codec.space.name != wanted.latent_space:
            raise CacheError("The VAE is not the one the cache was planned for. Queue again.")
    if plan.missing_texts:
        if text_encoder is None:
            raise CacheError(f"{len(plan.missing_texts)} texts are missing. Connect a CLIP to CacheLatents.")
        if text_encoder.identity != wanted.text_identity:
            raise CacheError("The text encoder is not the one the cache was planned for. Queue again.")
    if plan.needs_vision:
        if image_encoder is None:
            raise CacheError(
                f"The image tokens of {len(plan.missing_conditions)} clips are missing. Connect CLIPVisionLoader to "
                "clip_vision of CacheLatents."
            )
        if image_encoder.identity != wanted.vision_identity:
            raise CacheError("The CLIP vision encoder is not the one the cache was planned for. Queue again.")


def _report(plan: EncodingPlan, kept: CacheSet, fingerprint: str, seconds: float) -> EncodingReport:
    items = kept.items
    return EncodingReport(
        fingerprint=fingerprint,
        latents_encoded=len(plan.missing_latents),
        latents_reused=plan.latents_reused,
        texts_encoded=len(plan.missing_texts),
        texts_reused=plan.texts_reused,
        clips=len(items),
        frames=sum(item.num_frames for item in items),
        damaged=plan.damaged,
        outdated=plan.outdated,
        seconds=seconds,
        conditioning=plan.cache_set.conditioning,
        conditions_encoded=len(plan.missing_conditions),
        conditions_reused=plan.conditions_reused,
        masks_encoded=len(plan.missing_masks),
        masks_reused=plan.masks_reused,
        stills=sum(item.num_frames == 1 for item in items),
        held_out=len(kept.held_out),
    )
