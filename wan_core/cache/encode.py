"""Encodes the missing entries of a plan. A stopped or failed encoding keeps its finished entries."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from ..dataset import Companion, Progress, Sample, lengths_of
from ..dataset.conditioning import loss_mask, name_of
from ..errors import CacheError, stop_if
from ..flow import EVALUATION_TIMESTEPS, draw_noise, seeded_generator
from ..model.latents import ImageEncoder, LatentCodec, TextEncoder
from ..video import UnreadableError, VideoProcess
from .cache_set import CacheSet
from .condition import condition_from_files, files_read, mask_pixels
from .encoding_plan import ClipTask, EncodingPlan, TextTask
from .encoding_report import EncodingReport, TextCounter, left_out_of, report_of, require_enough
from .keys import KINDS
from .latent_cache import LatentCache
from .read_ahead import ReadAhead, WriteBehind
from .shows_nothing import clips_that_show_nothing, few_frames, shows_nothing
from .upkeep import tidy


@dataclass(frozen=True, kw_only=True)
class Encoders:
    """The encoders and the clip reader for an encoding. An encoder is None if no entry needs it."""

    codec: LatentCodec | None
    text_encoder: TextEncoder | None
    image_encoder: ImageEncoder | None = None
    video: VideoProcess
    progress: Progress | None = None
    should_stop: Callable[[], bool] | None = None


def encode_missing(
    plan: EncodingPlan,
    cache: LatentCache,
    encoders: Encoders,
    in_use: Collection[str] = (),
) -> EncodingReport:
    """Encode the missing entries one by one, store the set and trim the cache. Raises Stopped between entries.

    `in_use`: other sets and entries that a size limit must not evict.
    """
    start = time.monotonic()
    encoded = encode_entries(plan, cache, encoders)
    kept = plan.cache_set.without(encoded.failed)
    _write_evaluations(cache, kept)
    fingerprint = cache.write_set(kept)
    counts = {kind: plan.missing(kind) for kind in KINDS}
    counts["latent"] -= sum(task.kind == "latent" and task.key in encoded.failed for task in plan.missing_clips)
    report = report_of(kept, fingerprint, time.monotonic() - start, counts, plan.reused)
    upkeep = tidy(cache, fingerprint, limit_gb=plan.cache_limit_gb, in_use=in_use)
    cache.save_known()
    return replace(
        report,
        damaged=plan.damaged,
        upkeep=upkeep,
        black_masks=encoded.black_masks,
        nothing_shown=clips_that_show_nothing(kept, cache.entries),
        text_lengths=lengths_of(encoded.captions) if encoded.captions else None,
        left_out=left_out_of({**plan.unreadable, **encoded.failed}, plan.samples),
    )


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """The results of an encoding other than entries."""

    failed: Mapping[str, str] = field(default_factory=dict[str, str])
    """key -> why the entry could not be encoded"""
    black_masks: tuple[str, ...] = ()
    """clips whose mask has no white pixel"""
    captions: tuple[tuple[str, int], ...] = ()
    """(clip, number of tokens) of each encoded caption; empty if the encoder cannot count tokens"""


def encode_entries(plan: EncodingPlan, cache: LatentCache, encoders: Encoders) -> Encoded:
    """Encodes the missing entries one by one, without writing a set. Raises Stopped between entries."""
    _check_encoders(plan, encoders)
    work: list[TextTask | ClipTask] = [*plan.missing_texts, *_by_clip(plan)]
    writes = WriteBehind()
    clips = ReadAhead(encoders.video, plan.cache_set.fps, _reads_of(plan), cache.files.require_unchanged)
    encoding = _Encoding(plan, cache, encoders, clips, writes)
    counter = TextCounter(plan.cache_set, encoders.text_encoder)
    try:
        with writes, clips:
            for done, task in enumerate(work, 1):
                stop_if(encoders.should_stop, "caching")
                if isinstance(task, TextTask):
                    name = encoding.text(task)
                    counter.add(task.key, task.text)
                else:
                    name = encoding.clip_unless_unreadable(task)
                if done == len(work):
                    writes.settle()  # a failed write must be raised before progress shows 100 %
                if encoders.progress is not None:
                    encoders.progress(done, len(work), name)
    finally:
        lasting = {key: str(error) for key, error in encoding.failed.items() if error.lasting}
        cache.entries.note_unreadable(encoding.tried, lasting)
        cache.save_known()
    encoding.require_enough(finished=True)
    cache.entries.note_pace(plan.cache_set.latent_space, encoding.vae_s, encoding.megapixels)
    failed = {key: str(error) for key, error in encoding.failed.items()}
    return Encoded(failed=failed, black_masks=tuple(encoding.black), captions=tuple(counter.counts))


@dataclass
class _Encoding:
    """Encodes and stores entries; measures the VAE's speed."""

    plan: EncodingPlan
    cache: LatentCache
    encoders: Encoders
    clips: ReadAhead
    writes: WriteBehind
    vae_s: float = 0.0
    megapixels: float = 0.0
    black: list[str] = field(default_factory=list[str])
    failed: dict[str, UnreadableError] = field(default_factory=dict[str, UnreadableError])
    """key of the entry -> reason"""
    tried: dict[str, Sample] = field(default_factory=dict[str, Sample])

    @functools.cached_property
    def _reused(self) -> frozenset[Path]:
        """Files that have a sample with cache hits only."""
        plan = self.plan
        needed = {id(task.sample) for task in plan.missing_clips} | {id(plan.samples[key]) for key in plan.unreadable}
        return frozenset(sample.path for sample in plan.samples.values() if id(sample) not in needed)

    def text(self, task: TextTask) -> str:
        """Encode one prompt; returns its name for progress."""
        assert self.encoders.text_encoder is not None
        name = task.text[:60] or "the empty prompt"
        features, stored = self.encoders.text_encoder.encode(task.text), self.plan.stored.get(task.key)
        self.writes.put(lambda: self.cache.write_text(task.key, features, name, stored))
        return name_of(task.text)

    def clip_unless_unreadable(self, task: ClipTask) -> str:
        """Encode one entry of a clip, or record why it is unreadable; returns the file name."""
        # All entries of a sample need the same frames, so one unreadable entry makes the others unreadable.
        if any(self.tried[key] is task.sample for key in self.failed):
            return task.sample.name
        self.tried[task.key] = task.sample
        try:
            self.clip(task)
        except UnreadableError as error:
            self.failed[task.key] = error
            self.require_enough(finished=False)
        return task.sample.name

    def require_enough(self, *, finished: bool) -> None:
        """Raises DatasetError if most clips are unreadable. A clip with one readable sample counts as readable."""
        failed = {id(self.tried[key]) for key in self.failed}
        read = {sample.path for sample in self.tried.values() if id(sample) not in failed} | self._reused
        why = {self.tried[key].path: str(error) for key, error in self.failed.items()}
        lost = [sentence for path, sentence in why.items() if path not in read]
        require_enough(lost, len(read | why.keys()), finished=finished)

    def clip(self, task: ClipTask) -> None:
        """Encode one entry of a clip."""
        start, sample = time.monotonic(), task.sample
        if task.kind == "mask":
            weights = loss_mask(mask_pixels(sample, self.clips.pixels), self.plan.cache_set.space.spatial_stride)
            self.writes.put(lambda: self.cache.write_mask(task.key, weights, sample.name))
            if not bool(weights.any()):
                self.black.append(sample.name)
            return
        assert self.encoders.codec is not None
        if task.kind == "latent":
            pixels = self.clips.pixels(sample)
            latent, few = self.encoders.codec.encode(pixels), few_frames(pixels)
            if tuple(latent.shape) != task.shape:
                raise CacheError(
                    f"The VAE returned shape {list(latent.shape)} for {sample.name}; {list(task.shape)} was expected. "
                    "Choose the VAE that belongs to the model."
                )
            self.writes.put(lambda: self._write(task, latent, few))
        else:
            kind, stored = self.plan.cache_set.kind, self.plan.stored.get(task.key)
            codec, vision, fps = self.encoders.codec, self.encoders.image_encoder, self.plan.cache_set.fps
            given = condition_from_files(sample, kind, self.clips.pixels, codec, vision, fps)
            if sample.camera is not None:
                self.cache.files.require_unchanged(sample.camera)
            self.writes.put(lambda: self.cache.write_condition(task.key, given, sample.name, stored))
        passes = 1 if task.kind == "latent" else self.plan.cache_set.kind.vae_passes
        bucket = sample.bucket
        self.megapixels += passes * bucket.num_frames * bucket.height * bucket.width / 1e6
        self.vae_s += time.monotonic() - start

    def _write(self, task: ClipTask, latent: Tensor, few: Tensor) -> None:
        """Store a latent, and record if `few` frames of its clip are noise or one colour. Runs on the write thread."""
        if shows_nothing(few):
            self.cache.entries.note_shows_nothing(task.key)
        self.cache.write_latent(task.key, latent, task.sample.name, self.plan.stored.get(task.key))


def _by_clip(plan: EncodingPlan) -> list[ClipTask]:
    order = {key: place for place, item in enumerate(plan.cache_set.all_items) for key in item.clip_keys}
    return sorted(plan.missing_clips, key=lambda task: order[task.key])


def _reads_of(plan: EncodingPlan) -> list[tuple[Sample, Companion | None]]:
    """Returns the reads of all tasks in order; consecutive tasks of one sample read its frames once."""
    reads: list[tuple[Sample, Companion | None]] = []
    last: Sample | None = None
    for task in _by_clip(plan):
        sample, files = task.sample, [None]
        if task.kind == "condition":
            files = files_read(sample, plan.cache_set.kind)
        elif task.kind == "mask":
            files = [sample.mask]
        reads += [(sample, file) for file in files if file is not None or sample is not last]
        last = sample if None in files else last
    return reads


def _check_encoders(plan: EncodingPlan, found: Encoders) -> None:
    wanted, codec, text, vision = plan.cache_set, found.codec, found.text_encoder, found.image_encoder
    if plan.needs_vae and codec is None:
        count = plan.missing("latent") or plan.missing("condition")
        raise CacheError("{count} latents are missing. Connect a VAE to Cache Latents + Captions.", count=count)
    if plan.missing_texts and text is None:
        raise CacheError(
            "{missing_texts} texts are missing. Connect a CLIP to Cache Latents + Captions.",
            missing_texts=len(plan.missing_texts),
        )
    if plan.needs_vision and vision is None:
        raise CacheError(
            "The image tokens of {missing_conditions} clips are missing. Connect Load CLIP Vision to "
            "clip_vision of Cache Latents + Captions.",
            missing_conditions=plan.missing("condition"),
        )
    vae = codec and (codec.identity, codec.space.name)
    for needed, what, identity, planned in (
        (plan.needs_vae, "VAE", vae, (wanted.vae_identity, wanted.latent_space)),
        (plan.missing_texts, "text encoder", text and text.identity, wanted.text_identity),
        (plan.needs_vision, "CLIP vision encoder", vision and vision.identity, wanted.vision_identity),
    ):
        if needed and identity != planned:
            raise CacheError(f"The {what} is not the one the cache was planned for. Press Run again.")


def _write_evaluations(cache: LatentCache, cache_set: CacheSet) -> None:
    """Store the missing evaluation noise (timesteps, C, F, h, w) float32 of held-out clips."""
    # The noise is stored and not drawn again, because another version of torch may draw other values.
    for item in cache_set.held_out:
        shape = cache_set.latent_shape(item)
        if item.evaluation_key and not cache.holds("evaluation", item.evaluation_key, shape):
            draws = [
                draw_noise((1, *shape), seeded_generator("evaluation", item.latent_key, timestep))[0]
                for timestep in EVALUATION_TIMESTEPS
            ]
            tensors = {"noise": torch.stack(draws), "timesteps": torch.tensor(EVALUATION_TIMESTEPS)}
            cache.write_tensors("evaluation", item.evaluation_key, tensors, item.name)
