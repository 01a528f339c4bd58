"""Encode once: what of a dataset is not in the cache yet, and putting it there.

Planning needs no encoder, so a complete cache loads neither VAE nor text encoder. Every finished
entry stays, whatever stops the rest.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import CacheError, DatasetError, Stopped
from ..files import FileError, file_identity
from ..model.latents import LatentCodec, LatentSpace, TextEncoder
from ..video import VideoProcess
from .cache import LatentCache, latent_key, text_key
from .cache_set import CacheItem, CacheSet
from .dataset import Dataset
from .prompts import DEFAULT_NEGATIVE_PROMPT
from .scan import Progress, Sample

__all__ = [
    "DEFAULT_NEGATIVE_PROMPT",
    "EncodingPlan",
    "EncodingReport",
    "LatentTask",
    "TextTask",
    "encode_missing",
    "plan_encoding",
]


@dataclass(frozen=True)
class LatentTask:
    """One latent to make."""

    key: str
    sample: Sample
    shape: tuple[int, ...]


@dataclass(frozen=True)
class TextTask:
    """One prompt to encode."""

    key: str
    text: str


@dataclass(frozen=True)
class EncodingPlan:
    """What is missing, and the set the job will train on once it is there."""

    missing_latents: tuple[LatentTask, ...]
    missing_texts: tuple[TextTask, ...]
    cache_set: CacheSet
    latents_reused: int
    texts_reused: int
    damaged: int = 0
    """entries that exist but cannot be used; they are among the missing and will be replaced"""

    @property
    def is_complete(self) -> bool:
        """True when nothing has to be encoded."""
        return not self.missing_latents and not self.missing_texts


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

    def sentences(self) -> str:
        """Plain text for the node."""
        lines = [
            f"{self.clips} items, {self.frames} frames",
            f"latents: {self.latents_encoded} encoded, {self.latents_reused} reused",
            f"texts: {self.texts_encoded} encoded, {self.texts_reused} reused "
            "(captions, the empty prompt and the default negative prompt)",
            f"{self.seconds:.1f} s",
        ]
        if self.damaged:
            lines.append(f"{self.damaged} damaged cache entries were replaced")
        return "\n".join(lines)


def plan_encoding(
    dataset: Dataset,
    cache: LatentCache,
    *,
    vae_identity: str,
    text_identity: str,
    space: LatentSpace,
    rebuild: bool = False,
    should_stop: Callable[[], bool] | None = None,
) -> EncodingPlan:
    """Compare a dataset with the cache. Entries are read and checked, so a damaged one counts as
    missing.

    `rebuild` treats every entry as missing.
    """
    items: list[CacheItem] = []
    samples: dict[str, Sample] = {}
    try:
        for part in dataset.parts:
            for sample in part.samples:
                _stop_if(should_stop)
                digest = _digest(sample, cache, should_stop)
                how = {**_transform(sample, dataset.fps), "space": space.name}
                key = latent_key(content_digest=digest, transform=how, encoder_identity=vae_identity)
                samples.setdefault(key, sample)
                items.append(_item(sample, key, part.config.num_repeats, text_identity))
    finally:
        cache.save_digests()
    cache_set = CacheSet(
        items=tuple(items),
        empty_text_key=text_key("", text_identity),
        negative_text_key=text_key(DEFAULT_NEGATIVE_PROMPT, text_identity),
        latent_space=space.name,
        fps=dataset.fps,
        vae_identity=vae_identity,
        text_identity=text_identity,
    )
    return _compare(cache_set, samples, cache, rebuild, should_stop)


def encode_missing(
    plan: EncodingPlan,
    cache: LatentCache,
    *,
    codec: LatentCodec | None,
    text_encoder: TextEncoder | None,
    video: VideoProcess,
    progress: Progress | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> EncodingReport:
    """Encode what is missing, one text or clip at a time, then store the set.

    An encoder may be None when nothing is missing on its side. Raises Stopped between two units of
    work.
    """
    start = time.monotonic()
    _check_encoders(plan, codec, text_encoder)
    done, total = 0, len(plan.missing_texts) + len(plan.missing_latents)
    for task in plan.missing_texts:
        _stop_if(should_stop)
        assert text_encoder is not None
        cache.write_text(task.key, text_encoder.encode(task.text), task.text[:60] or "the empty prompt")
        done += 1
        if progress is not None:
            progress(done, total, task.text[:60])
    for task in plan.missing_latents:
        _stop_if(should_stop)
        assert codec is not None
        cache.write_latent(task.key, _encode(task, plan.cache_set.fps, codec, video), task.sample.name)
        done += 1
        if progress is not None:
            progress(done, total, task.sample.name)
    return _report(plan, cache.write_set(plan.cache_set), time.monotonic() - start)


def _compare(
    cache_set: CacheSet,
    samples: dict[str, Sample],
    cache: LatentCache,
    rebuild: bool,
    should_stop: Callable[[], bool] | None,
) -> EncodingPlan:
    shapes = {item.latent_key: cache_set.latent_shape(item) for item in cache_set.items}
    texts = {cache_set.empty_text_key: "", cache_set.negative_text_key: DEFAULT_NEGATIVE_PROMPT}
    texts.update({item.text_key: item.caption for item in cache_set.items})
    damaged = 0

    def is_missing(kind: str, key: str, shape: tuple[int, ...] | None = None) -> bool:
        nonlocal damaged
        _stop_if(should_stop)
        exists = cache.has_latent(key) if kind == "latent" else cache.has_text(key)
        if not exists or rebuild:
            return True
        sound = cache.is_sound(kind, key, shape)
        damaged += not sound
        return not sound

    latents = [
        LatentTask(key, sample, shapes[key])
        for key, sample in samples.items()
        if is_missing("latent", key, shapes[key])
    ]
    prompts = [TextTask(key, text) for key, text in texts.items() if is_missing("text", key)]
    return EncodingPlan(
        tuple(latents),
        tuple(prompts),
        cache_set,
        latents_reused=len(samples) - len(latents),
        texts_reused=len(texts) - len(prompts),
        damaged=damaged,
    )


def _item(sample: Sample, key: str, repeats: int, text_identity: str) -> CacheItem:
    return CacheItem(
        latent_key=key,
        text_key=text_key(sample.caption, text_identity),
        num_frames=sample.bucket.num_frames,
        height=sample.bucket.height,
        width=sample.bucket.width,
        repeats=repeats,
        name=sample.name,
        caption=sample.caption,
    )


def _transform(sample: Sample, fps: float) -> dict[str, Any]:
    """All that decides which pixels the encoder sees, as JSON data; stills have no frame rate."""
    bucket = sample.bucket
    size = {"width": bucket.width, "height": bucket.height, "fit": "cover"}
    if sample.kind == "still":
        return {"kind": "still", **size}
    return {"kind": "clip", **size, "num_frames": bucket.num_frames, "fps": fps, "start_s": 0.0}


def _digest(sample: Sample, cache: LatentCache, should_stop: Callable[[], bool] | None) -> str:
    try:
        _require_unchanged(sample)
        return cache.digest_of(sample.path, should_stop)
    except FileError as error:
        _stop_if(should_stop)
        raise DatasetError(str(error)) from error


def _encode(task: LatentTask, fps: float, codec: LatentCodec, video: VideoProcess) -> Tensor:
    sample = task.sample
    frames = video.read(
        sample.path,
        fps=fps,
        num_frames=sample.bucket.num_frames,
        width=sample.bucket.width,
        height=sample.bucket.height,
    )
    _require_unchanged(sample)
    latent = codec.encode(torch.from_numpy(frames).float() / 255)  # pyright: ignore[reportUnknownMemberType]
    if tuple(latent.shape) != task.shape:
        raise CacheError(
            f"The VAE returned shape {list(latent.shape)} for {sample.name}; "
            f"{list(task.shape)} was expected. Choose the VAE that belongs to the model."
        )
    return latent


def _require_unchanged(sample: Sample) -> None:
    try:
        same = file_identity(sample.path) == sample.identity
    except OSError as error:
        raise DatasetError(f"{sample.name} is gone since it was scanned. Queue again.") from error
    if not same:
        raise DatasetError(f"{sample.name} changed since it was scanned. Queue again.")


def _check_encoders(plan: EncodingPlan, codec: LatentCodec | None, text_encoder: TextEncoder | None) -> None:
    wanted = plan.cache_set
    if plan.missing_latents:
        if codec is None:
            raise CacheError(f"{len(plan.missing_latents)} latents are missing. Connect a VAE to CacheLatents.")
        if codec.identity != wanted.vae_identity or codec.space.name != wanted.latent_space:
            raise CacheError("The VAE is not the one the cache was planned for. Queue again.")
    if plan.missing_texts:
        if text_encoder is None:
            raise CacheError(f"{len(plan.missing_texts)} texts are missing. Connect a CLIP to CacheLatents.")
        if text_encoder.identity != wanted.text_identity:
            raise CacheError("The text encoder is not the one the cache was planned for. Queue again.")


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
    )


def _stop_if(should_stop: Callable[[], bool] | None) -> None:
    if should_stop is not None and should_stop():
        raise Stopped("Stopped while caching.")
