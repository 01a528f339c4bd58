"""Start and end pictures of image-to-video previews: stores them in the cache, and encodes them with a node's VAE."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from comfy.utils import common_upscale
from torch import Tensor

from ...wan_core.cache import CacheSet, LatentCache, condition_key, latent_key, read_picture, write_picture
from ...wan_core.checkpoint import WanVariant
from ...wan_core.dataset import with_mask
from ...wan_core.errors import ConfigError
from ...wan_core.families import CHANNELS, FIRST_LATENT
from ...wan_core.sampler import PreviewPrompt, SampleConfig
from ...wan_core.train import preview_shape
from .sockets import ComfyImageEncoder, ComfyVae

_GREY = 0.5


def keep_picture(cache: LatentCache, image: Tensor | None, place: int) -> str:
    """Stores frame `place` of an IMAGE (F, H, W, C) in the cache; returns its name, or "" without an image."""
    return "" if image is None else write_picture(cache.root, image[place, :, :, :3])


def vision_tokens_key(pictures: list[str], vision_identity: str) -> str:
    """Returns the cache key of the image tokens of stored pictures, in this order."""
    return condition_key(
        content_digest="".join(pictures),
        transform={"kind": "pictures"},
        encoder_identity="",
        conditioning="image_tokens",
        vision_identity=vision_identity,
    )


def write_vision_tokens(cache: LatentCache, key: str, pictures: list[str], encoder: ComfyImageEncoder) -> None:
    """Encode stored pictures uncropped, at their own size, like ComfyUI's CLIPVisionEncode with crop "none"."""
    tokens = torch.cat([encoder.encode(read_picture(cache.root, name)) for name in pictures])
    cache.write_condition(key, {"image_tokens": tokens}, "the start image")


def encode_start_images(
    config: SampleConfig, cache: LatentCache, cache_set: CacheSet, variant: WanVariant, codec: ComfyVae
) -> SampleConfig:
    """Returns `config` with the cache keys of its pictures in the size of each clip; encodes them on a miss."""
    if not (config.start_image or config.end_image):
        return config
    own: list[PreviewPrompt] = []
    for index, prompt in enumerate(config.prompt_settings):  # a prompt may set another size
        found = _encoded(config.of_prompt(index), cache, cache_set, variant, codec)
        own.append(replace(prompt, condition_key=found.condition_key, first_frame_key=found.first_frame_key))
    return replace(_encoded(config, cache, cache_set, variant, codec), prompt_settings=tuple(own))


def _encoded(
    config: SampleConfig, cache: LatentCache, cache_set: CacheSet, variant: WanVariant, codec: ComfyVae
) -> SampleConfig:
    height, width = (n * variant.latents.spatial_stride for n in preview_shape(cache_set, config)[2:])
    how: dict[str, Any] = {"kind": "preview", "width": width, "height": height}
    if variant.family.starts_from == FIRST_LATENT:
        return _first_frame(config, cache, how, codec)
    if variant.family.starts_from != CHANNELS:
        raise ConfigError(
            "Wan Preview Settings has a start_image, but {name} does not use one in previews. Disconnect it, or "
            "choose an image-to-video model.",
            name=variant.name,
        )
    return _channels(config, cache, cache_set, how, codec)


def _first_frame(config: SampleConfig, cache: LatentCache, how: dict[str, Any], codec: ComfyVae) -> SampleConfig:
    if config.end_image or not config.start_image:
        raise ConfigError(
            "TI2V-5B starts from one picture. Connect start_image of Wan Preview Settings, not end_image."
        )
    key = latent_key(content_digest=config.start_image, transform=how, encoder_identity=codec.identity)
    if not cache.is_sound("latent", key):
        cache.write_latent(key, codec.encode(_fitted(cache, config.start_image, how)[None]), "the start image")
    return replace(config, first_frame_key=key)


def _channels(
    config: SampleConfig, cache: LatentCache, cache_set: CacheSet, how: dict[str, Any], codec: ComfyVae
) -> SampleConfig:
    kind, count = cache_set.kind, config.num_frames or cache_set.items[0].num_frames
    if kind.vision and not config.vision_key:
        raise ConfigError(
            "This model also needs CLIP vision tokens of the start image. Connect Load CLIP Vision with clip_vision_h "
            "to clip_vision of Wan Preview Settings."
        )
    pictures = {0: config.start_image, -1: config.end_image}
    given = tuple(frame for frame, name in pictures.items() if name)
    key = condition_key(
        content_digest="/".join(pictures.values()),
        transform={**how, "num_frames": count},
        encoder_identity=codec.identity,
        conditioning=kind.name,
        vision_identity=config.vision_key if kind.vision else "",
    )
    if not cache.is_sound("condition", key):
        pixels = torch.full((count, how["height"], how["width"], 3), _GREY)
        for frame in given:
            pixels[frame] = _fitted(cache, pictures[frame], how)
        tensors = {"channels": with_mask(codec.encode(pixels), count, given)}
        if kind.vision:
            tensors["image_tokens"] = cache.read_condition(config.vision_key)["image_tokens"]
        cache.write_condition(key, tensors, "the start image")
    return replace(config, condition_key=key)


def _fitted(cache: LatentCache, name: str, how: dict[str, Any]) -> Tensor:
    """Returns a stored picture (H, W, 3) at the preview's size, scaled and cropped as by ComfyUI's WanImageToVideo."""
    picture = read_picture(cache.root, name)[None].movedim(-1, 1)
    return common_upscale(picture, how["width"], how["height"], "bilinear", "center").movedim(1, -1)[0]
