"""Encode once: puts what a plan found missing into the cache. Every finished entry stays, whatever stops the rest."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...errors import CacheError
from ...model.latents import ImageEncoder, LatentCodec, TextEncoder
from ...video import VideoProcess
from ..cache import LatentCache
from ..conditioning import ConditionKind, given_frames, with_mask
from ..samples import Progress, Sample
from .held_out import write_evaluations
from .plan import ConditionTask, EncodingPlan, LatentTask, TextTask, require_unchanged, stop_if
from .tidy import tidy

__all__ = ["EncodingReport", "condition_of", "encode_missing"]


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
    conditioning: str = "none"
    """ConditionKind.name of the set"""
    conditions_encoded: int = 0
    conditions_reused: int = 0
    stills: int = 0
    """items of one frame"""
    held_out: int = 0
    """further clips that are not trained but evaluated"""
    upkeep: str = ""
    """what was done for the cache itself"""

    def sentences(self) -> str:
        """Plain text for the node."""
        lines = [
            f"{self.clips} items, {self.frames} frames",
            f"latents: {self.latents_encoded} encoded, {self.latents_reused} reused",
            f"texts: {self.texts_encoded} encoded, {self.texts_reused} reused "
            "(captions, the empty prompt and the default negative prompt)",
        ]
        if self.conditioning != "none":
            counts = f"{self.conditions_encoded} encoded, {self.conditions_reused} reused"
            lines.append(f"given frames ({self.conditioning}): {counts}")
            if self.stills:
                lines.append(f"stills: {self.stills}, each given whole as its own first frame")
        if self.held_out:
            lines.append(f"held out for evaluation: {self.held_out}")
        lines.append(f"{self.seconds:.1f} s")
        if self.damaged:
            lines.append(f"{self.damaged} damaged cache entries were replaced")
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
    work = [*plan.missing_texts, *_by_clip(plan)]
    clips = _Clips(video, plan.cache_set.fps)
    for done, task in enumerate(work, 1):
        stop_if(should_stop)
        stored = plan.stored.get(task.key)
        if isinstance(task, TextTask):
            assert text_encoder is not None
            name = task.text[:60]
            cache.write_text(task.key, text_encoder.encode(task.text), name or "the empty prompt", stored)
        else:
            assert codec is not None
            name = task.sample.name
            if isinstance(task, LatentTask):
                cache.write_latent(task.key, _encode(task, clips.pixels(task.sample), codec), name, stored)
            else:
                given = condition_of(clips.pixels(task.sample), plan.cache_set.kind, codec, image_encoder)
                cache.write_condition(task.key, given, name, stored)
        if progress is not None:
            progress(done, len(work), name)
    write_evaluations(cache, plan.cache_set)
    fingerprint = cache.write_set(plan.cache_set)
    report = _report(plan, fingerprint, time.monotonic() - start)
    upkeep = tidy(cache, fingerprint, limit_gb=plan.cache_limit_gb, in_use=in_use, should_stop=should_stop)
    return replace(report, upkeep=upkeep)


def condition_of(
    pixels: Tensor, kind: ConditionKind, codec: LatentCodec, image_encoder: ImageEncoder | None
) -> dict[str, Tensor]:
    """What a clip (F, H, W, 3) in [0, 1] is conditioned on when some of its own frames are given.

    The frames that are not given are mid grey and go through the VAE with the rest: encoded grey is no zero latent.
    """
    latent = codec.encode(given_frames(pixels, kind.frames))
    tensors = {"channels": with_mask(latent, len(pixels), kind.frames)}
    if kind.vision:
        assert image_encoder is not None
        tensors["image_tokens"] = torch.cat([image_encoder.encode(pixels[frame]) for frame in kind.frames])
    return tensors


def _by_clip(plan: EncodingPlan) -> list[LatentTask | ConditionTask]:
    """Both tasks of one clip beside each other, so that it is decoded once."""
    tasks: list[LatentTask | ConditionTask] = [*plan.missing_latents, *plan.missing_conditions]
    order = {item.latent_key: place for place, item in enumerate(plan.cache_set.all_items)}
    order |= {item.condition_key: order[item.latent_key] for item in plan.cache_set.all_items}
    return sorted(tasks, key=lambda task: order[task.key])


class _Clips:
    """Decodes clips; remembers the last one."""

    def __init__(self, video: VideoProcess, fps: float) -> None:
        self._video, self._fps = video, fps
        self._last: tuple[Sample, Tensor] | None = None

    def pixels(self, sample: Sample) -> Tensor:
        """(F, H, W, 3) float32 in [0, 1]."""
        if self._last is None or self._last[0] is not sample:
            bucket = sample.bucket
            frames = self._video.read(
                sample.path, fps=self._fps, num_frames=bucket.num_frames, width=bucket.width, height=bucket.height
            )
            require_unchanged(sample)
            self._last = sample, torch.from_numpy(frames).float() / 255  # pyright: ignore[reportUnknownMemberType]
        return self._last[1]


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


def _report(plan: EncodingPlan, fingerprint: str, seconds: float) -> EncodingReport:
    items = plan.cache_set.items
    return EncodingReport(
        fingerprint=fingerprint,
        latents_encoded=len(plan.missing_latents),
        latents_reused=plan.latents_reused,
        texts_encoded=len(plan.missing_texts),
        texts_reused=plan.texts_reused,
        clips=len(items),
        frames=sum(item.num_frames for item in items),
        damaged=plan.damaged,
        seconds=seconds,
        conditioning=plan.cache_set.conditioning,
        conditions_encoded=len(plan.missing_conditions),
        conditions_reused=plan.conditions_reused,
        stills=sum(item.num_frames == 1 for item in items),
        held_out=len(plan.cache_set.held_out),
    )
