"""The inputs of preview clips, read from the cache before any weight is loaded."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..cache import CacheSet, LatentCache, pad_text
from ..checkpoint import WanVariant
from ..dataset import stack_conditions
from ..errors import ConfigError
from ..model import Conditioning
from ..sampler import SampleConfig, SamplingPreset, template_of

__all__ = ["PreviewInputs", "preview_shape", "read_preview_inputs"]


@dataclass(frozen=True)
class PreviewInputs:
    """The inputs that every preview of a run has, so that clips of different steps compare."""

    config: SampleConfig
    texts: tuple[Tensor, ...]
    """(512, 4096) of each prompt"""
    negative: Tensor
    shape: tuple[int, ...]
    """(1, C, F, h, w)"""
    conditioning: Conditioning | None = None
    first_frame: Tensor | None = None
    """(1, C, 1, h, w)"""
    preset: SamplingPreset = field(default_factory=lambda: SampleConfig().resolved())

    def noise(self) -> Tensor:
        """Returns noise as ComfyUI's prepare_noise makes it: one CPU generator, standard normal, float32."""
        return torch.randn(self.shape, generator=torch.Generator("cpu").manual_seed(self.config.seed))


def read_preview_inputs(
    cache: LatentCache,
    cache_set: CacheSet,
    config: SampleConfig,
    variant: WanVariant,
    *,
    starts_from_clip: bool = False,
) -> PreviewInputs:
    """Read texts and conditioning.

    ConfigError when the preview's size does not go with them, or guidance names blocks that `variant` does not have.

    What the settings leave to the model is that of ComfyUI's template of `variant`. An image-to-video model starts
    from the given pictures, else from the first clip's own frames. `starts_from_clip` says the same of a TI2V-5B that
    is trained on nothing but image-to-video; otherwise its previews are text-to-video.
    """
    preset = config.resolved(template_of(variant.task, pair=variant.boundary is not None))
    preset.guidance.require_blocks(variant.shape.num_layers)
    keys = config.prompt_keys or (cache_set.items[0].text_key,)
    shape = preview_shape(cache_set, config)
    first_frame = _first_frame(cache, cache_set, config, shape, starts_from_clip)
    return PreviewInputs(
        config,
        tuple(pad_text(cache.read_text(key)) for key in keys),
        pad_text(cache.read_text(config.negative_key or cache_set.negative_text_key)),
        (1, *shape),
        _conditioning(cache, cache_set, config, shape),
        first_frame,
        preset,
    )


def preview_shape(cache_set: CacheSet, config: SampleConfig) -> tuple[int, int, int, int]:
    """Returns the latent shape (C, F, h, w) of a preview: what the settings say, else the first clip's."""
    space, first = cache_set.space, cache_set.items[0]
    frames = config.num_frames or first.num_frames
    height, width = config.height or first.height, config.width or first.width
    edge = 2 * space.spatial_stride
    for name, pixels in (("width", width), ("height", height)):
        if pixels % edge:
            raise ConfigError(
                f"Preview {name} {pixels} is not a multiple of {edge}. Set it to {pixels // edge * edge}."
            )
    stride = space.spatial_stride
    return (space.channels, space.latent_frames(frames), height // stride, width // stride)


def _conditioning(
    cache: LatentCache, cache_set: CacheSet, config: SampleConfig, shape: tuple[int, ...]
) -> Conditioning | None:
    if not cache_set.kind.tensors:
        return None
    key = config.condition_key
    if not key:
        _require_size_of_first_clip(cache_set, shape)
        key = cache_set.items[0].condition_key
    return stack_conditions([cache.read_condition(key, shape)])


def _first_frame(
    cache: LatentCache, cache_set: CacheSet, config: SampleConfig, shape: tuple[int, ...], starts_from_clip: bool
) -> Tensor | None:
    if shape[1] == 1:  # a still has no frame to go on with
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
            "WanPreviewSettings to 0, or connect start_image."
        )
