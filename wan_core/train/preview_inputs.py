"""Inputs of previews, read from the cache before any weight is loaded."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from ..cache import CacheItem, CacheSet, LatentCache, stack_texts
from ..checkpoint import WanVariant
from ..dataset import stack_conditions
from ..errors import ConfigError
from ..model import Conditioning
from ..sampler import SampleConfig, SamplingPreset


@dataclass(frozen=True)
class PreviewClip:
    """The inputs of one clip, the same at every step."""

    name: str
    """suffix of the sample id: p0, or p0_nickname"""
    prompt: str
    text: Tensor
    """(L, 4096)"""
    negative: Tensor
    """(M, 4096)"""
    shape: tuple[int, ...]
    """(1, C, F, h, w)"""
    preset: SamplingPreset
    seed: int
    conditioning: Conditioning | None = None
    first_frame: Tensor | None = None
    """(1, C, 1, h, w)"""
    start: Tensor | None = None
    """(1, C, F, h, w) clean latent, noised to the first sigma; None = pure noise"""
    start_name: str = ""
    """name of the training clip that `start` comes from"""
    leading_frames: int = 0
    """number of latent frames of a reference image before the clip, removed after sampling"""

    def noise(self) -> Tensor:
        """Returns noise as ComfyUI's prepare_noise makes it: one CPU generator, standard normal, float32."""
        return torch.randn(self.shape, generator=torch.Generator("cpu").manual_seed(self.seed))


@dataclass(frozen=True)
class PreviewInputs:
    """Inputs shared by all previews of a run, so that clips of different steps compare."""

    config: SampleConfig
    clips: tuple[PreviewClip, ...]
    """one per prompt"""


def read_preview_inputs(
    cache: LatentCache,
    cache_set: CacheSet,
    config: SampleConfig,
    variant: WanVariant,
    *,
    starts_from_clip: bool = False,
) -> PreviewInputs:
    """Returns texts, conditioning and start latents of the previews; without prompts, for the first clip's caption.

    Unset sampling settings come from ComfyUI's template of `variant`. Context streams come from the clip `pictured`.
    Image-to-video starts from the given pictures, else from the first clip's frames; `starts_from_clip`: TI2V-5B does
    too. Raises ConfigError for a size that does not fit them, and for guidance on blocks that `variant` lacks.
    """
    named = bool(config.prompt_keys)
    prompts = list(zip(config.prompt_keys, config.prompts, strict=True)) if named else []
    clips = []
    if not prompts:
        own_caption = pictured(cache_set)
        prompts = [(own_caption.text_key, own_caption.caption)]
    for index, (key, prompt) in enumerate(prompts):
        own = config.of_prompt(index) if named else config
        shape = preview_shape(cache_set, own)
        preset = own.resolved(variant.template, shape[2] * shape[3] * cache_set.space.spatial_stride**2)
        preset.guidance.require_blocks(variant.shape.num_layers)
        first_frame = _first_frame(cache, cache_set, own, shape, starts_from_clip)
        start, start_name = None, ""
        # A low noise expert cannot denoise pure noise, so its previews start from a training clip.
        if variant.sigma_range()[1] < 1:
            item = next((item for item in cache_set.items if item.text_key == key), cache_set.items[0])
            start, start_name = cache.read_latent(item.latent_key)[None].float(), item.name or "the first clip"
            if start.shape[2:] != shape[1:]:
                start = functional.interpolate(start, size=shape[1:], mode="trilinear")
        clips.append(
            PreviewClip(
                config.clip_name("", index).removeprefix("_") if named else "p0",
                prompt,
                stack_texts([cache.read_text(key)])[0],
                stack_texts([cache.read_text(own.negative_key or cache_set.negative_text_key)])[0],
                (1, *shape),
                preset,
                own.seed,
                _conditioning(cache, cache_set, own, shape),
                first_frame,
                start,
                start_name,
                cache_set.kind.leading_frames,
            )
        )
    return PreviewInputs(config, tuple(clips))


def largest_preview_shape(cache_set: CacheSet, config: SampleConfig) -> tuple[int, int, int, int]:
    """Returns the latent shape (C, F, h, w) of the largest preview of all prompts."""
    shapes = [preview_shape(cache_set, config.of_prompt(index)) for index in range(len(config.prompt_settings))]
    return max(shapes or [preview_shape(cache_set, config)], key=math.prod)


def preview_shape(cache_set: CacheSet, config: SampleConfig) -> tuple[int, int, int, int]:
    """Returns the latent shape (C, F, h, w) of a preview by the settings, else of the first clip."""
    space = cache_set.space
    frames = config.num_frames or pictured(cache_set).num_frames
    height, width = config.height or pictured(cache_set).height, config.width or pictured(cache_set).width
    edge = 2 * space.spatial_stride * (1 + cache_set.kind.halves)
    for name, pixels in (("width", width), ("height", height)):
        if pixels % edge:
            raise ConfigError(
                f"Preview {name} {pixels} is not a multiple of {edge}. Set it to {pixels // edge * edge}."
            )
    stride = space.spatial_stride
    latent_frames = space.latent_frames(frames) + cache_set.kind.leading_frames
    return (space.channels, latent_frames, height // stride, width // stride)


def _conditioning(
    cache: LatentCache, cache_set: CacheSet, config: SampleConfig, shape: tuple[int, ...]
) -> Conditioning | None:
    if not cache_set.kind.tensors:
        return None
    if cache_set.kind.in_context:
        return stack_conditions([cache.read_condition(pictured(cache_set).condition_key)])
    key = config.condition_key
    if not key:
        _require_size_of_first_clip(cache_set, shape)
        key = pictured(cache_set).condition_key
    frames = shape[1] - cache_set.kind.leading_frames
    return stack_conditions([cache.read_condition(key, (shape[0], frames, *shape[2:]))])


def pictured(cache_set: CacheSet) -> CacheItem:
    """Returns the clip that gives previews their conditioning and caption: the first one; for camera paths and context
    streams a held-out one, if there is one."""
    if "camera" in cache_set.kind.tensors:
        size = cache_set.latent_shape(cache_set.items[0])
        return next((i for i in cache_set.held_out if cache_set.latent_shape(i) == size), cache_set.items[0])
    if cache_set.kind.in_context and cache_set.held_out:
        return cache_set.held_out[0]
    return cache_set.items[0]


def _first_frame(
    cache: LatentCache, cache_set: CacheSet, config: SampleConfig, shape: tuple[int, ...], starts_from_clip: bool
) -> Tensor | None:
    if shape[1] == 1:  # In a still, no frame would be left to predict.
        return None
    if config.first_frame_key:
        latent = cache.read_latent(config.first_frame_key, (shape[0], 1, *shape[2:]))
    elif starts_from_clip:
        _require_size_of_first_clip(cache_set, shape)
        latent = cache.read_latent(cache_set.items[0].latent_key)
    else:
        return None
    return latent[None, :, :1].float()


def _require_size_of_first_clip(cache_set: CacheSet, shape: tuple[int, ...]) -> None:
    first = cache_set.items[0]
    if tuple(shape) != cache_set.latent_shape(first):
        raise ConfigError(
            f"Previews of an image-to-video model start from {first.name or 'the first clip'} and need its size: "
            f"{first.width}x{first.height}, {first.num_frames} frames. Set width, height and num_frames of "
            "Wan Preview Settings to 0, or connect start_image."
        )
