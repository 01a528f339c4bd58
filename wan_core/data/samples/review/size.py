"""How large the cache entries of a dataset will be: by the shapes the encoders answer with, in bfloat16."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ....model.latents import LatentSpace
from ...conditioning import ConditionKind
from ..sample import Sample

__all__ = ["CacheSize", "cache_size"]

_BYTES = 2
_TOKEN_BYTES = 4096 * _BYTES
_VISION_BYTES = 257 * 1280 * _BYTES


@dataclass(frozen=True, kw_only=True)
class CacheSize:
    """Payload bytes of everything a dataset needs, headers of the entries (a few hundred bytes each) left out."""

    latents: int
    conditions: int
    masks: int
    captions: int
    """different captions; a text entry has `token_bytes` for every token, which only the text encoder can count"""
    megapixels: float
    """of all frames that go through the VAE"""
    token_bytes: int = _TOKEN_BYTES

    @property
    def known(self) -> int:
        """Bytes of all but the texts."""
        return self.latents + self.conditions + self.masks


def cache_size(samples: Sequence[Sample], space: LatentSpace, kind: ConditionKind, *, loss_masks: bool) -> CacheSize:
    """The size of the entries of `samples`, each cut of a file once."""
    cuts = {(s.path, s.cut, s.bucket): s for s in samples}.values()
    volumes = [_latent_volume(sample, space) for sample in cuts]
    pixels = sum(s.bucket.num_frames * s.bucket.height * s.bucket.width for s in cuts)
    tokens = len(kind.frames) * _VISION_BYTES * len(cuts) if kind.vision else 0
    return CacheSize(
        latents=sum(volumes) * space.channels * _BYTES,
        conditions=sum(volumes) * _condition_channels(kind, space) * _BYTES + tokens,
        masks=sum(_latent_volume(s, space) for s in cuts if s.mask is not None) * _BYTES if loss_masks else 0,
        captions=len({sample.caption for sample in samples}),
        megapixels=pixels / 1e6 * (1 + kind.vae_passes),
    )


def _latent_volume(sample: Sample, space: LatentSpace) -> int:
    """Values of one latent channel."""
    bucket, stride = sample.bucket, space.spatial_stride
    return math.prod((space.latent_frames(bucket.num_frames), bucket.height // stride, bucket.width // stride))


def _condition_channels(kind: ConditionKind, space: LatentSpace) -> int:
    """Channels of latent size that `kind` adds to a clip."""
    latent = space.channels
    if kind.name == "vace":
        return 2 * latent + space.spatial_stride**2
    if kind.name.startswith("control"):
        return 2 * latent + (4 if kind.name == "control_mask" else 0)
    return 4 + latent if kind.tensors else 0
