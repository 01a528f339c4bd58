"""The latent spaces of Wan's two VAEs, and the protocols of the VAE, the text encoder and the image encoder.

ComfyUI implements the encoders; the engine uses them through these protocols only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True)
class LatentSpace:
    """Channels, strides and per-channel statistics of one VAE (Wan VAE source; same numbers in every port)."""

    name: str
    channels: int
    spatial_stride: int
    temporal_stride: int
    fps: float
    """frames per second that models of this space were trained with"""
    shift: float
    """timestep shift in training, for a model that covers all noise levels"""
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def size_multiple(self) -> int:
        """Width and height of a token in pixels: the VAE's stride times the patch size, 2."""
        return 2 * self.spatial_stride

    def normalise(self, raw: Tensor) -> Tensor:
        """Raw VAE output (..., C, F, H, W) -> latent of the transformer, (raw - mean) / std, float32."""
        mean, std = self._statistics(raw)
        return (raw.float() - mean) / std

    def denormalise(self, latent: Tensor) -> Tensor:
        """The inverse of `normalise`, float32."""
        mean, std = self._statistics(latent)
        return latent.float() * std + mean

    def latent_frames(self, num_frames: int) -> int:
        """Latent frames of a clip of `num_frames` = 4n+1 pixel frames."""
        return (num_frames - 1) // self.temporal_stride + 1

    def _statistics(self, like: Tensor) -> tuple[Tensor, Tensor]:
        shape = (self.channels, 1, 1, 1)
        mean = torch.tensor(self.mean, dtype=torch.float32, device=like.device).view(shape)
        std = torch.tensor(self.std, dtype=torch.float32, device=like.device).view(shape)
        return mean, std


# fmt: off
WAN21_LATENTS = LatentSpace(
    name="wan2.1", channels=16, spatial_stride=8, temporal_stride=4, fps=16.0, shift=3.0,
    mean=(-0.7571, -0.7089, -0.9113, 0.1075, -0.1745, 0.9653, -0.1517, 1.5508,
          0.4134, -0.0715, 0.5517, -0.3632, -0.1922, -0.9497, 0.2503, -0.2921),
    std=(2.8184, 1.4541, 2.3275, 2.6558, 1.2196, 1.7708, 2.6052, 2.0743,
         3.2687, 2.1526, 2.8652, 1.5579, 1.6382, 1.1253, 2.8251, 1.9160),
)

WAN22_LATENTS = LatentSpace(
    name="wan2.2", channels=48, spatial_stride=16, temporal_stride=4, fps=24.0, shift=5.0,
    mean=(-0.2289, -0.0052, -0.1323, -0.2339, -0.2799, 0.0174, 0.1838, 0.1557,
          -0.1382, 0.0542, 0.2813, 0.0891, 0.1570, -0.0098, 0.0375, -0.1825,
          -0.2246, -0.1207, -0.0698, 0.5109, 0.2665, -0.2108, -0.2158, 0.2502,
          -0.2055, -0.0322, 0.1109, 0.1567, -0.0729, 0.0899, -0.2799, -0.1230,
          -0.0313, -0.1649, 0.0117, 0.0723, -0.2839, -0.2083, -0.0520, 0.3748,
          0.0152, 0.1957, 0.1433, -0.2944, 0.3573, -0.0548, -0.1681, -0.0667),
    std=(0.4765, 1.0364, 0.4514, 1.1677, 0.5313, 0.4990, 0.4818, 0.5013,
         0.8158, 1.0344, 0.5894, 1.0901, 0.6885, 0.6165, 0.8454, 0.4978,
         0.5759, 0.3523, 0.7135, 0.6804, 0.5833, 1.4146, 0.8986, 0.5659,
         0.7069, 0.5338, 0.4889, 0.4917, 0.4069, 0.4999, 0.6866, 0.4093,
         0.5709, 0.6065, 0.6415, 0.4944, 0.5726, 1.2042, 0.5458, 1.6887,
         0.3971, 1.0600, 0.3943, 0.5537, 0.5444, 0.4089, 0.7468, 0.7744),
)
# fmt: on

LATENT_SPACES = (WAN21_LATENTS, WAN22_LATENTS)


class LatentCodec(Protocol):
    """A VAE."""

    identity: str
    """identifies the VAE's weights; part of every latent cache key"""
    space: LatentSpace

    def encode(self, pixels: Tensor) -> Tensor:
        """Clip (F, H, W, 3) float32 in [0, 1], F = 4n+1 -> normalised latent (C, F', h, w) float32 on the CPU."""
        ...

    def decode(self, latent: Tensor) -> Tensor:
        """Normalised latent (C, F', h, w) -> pixels (F, H, W, 3) float32 in [0, 1] on the CPU."""
        ...


class TextEncoder(Protocol):
    """A text encoder."""

    identity: str
    """identifies the encoder's weights; part of every text cache key"""

    def encode(self, text: str) -> Tensor:
        """Returns the features (L, 4096) float32 of one prompt on the CPU, without padding (L <= 512)."""
        ...


class ImageEncoder(Protocol):
    """A CLIP vision encoder (ViT-H/14 for Wan 2.1)."""

    identity: str
    """identifies the encoder's weights; part of the cache key of every conditioning with image tokens"""

    def encode(self, pixels: Tensor) -> Tensor:
        """Image (H, W, 3) float32 in [0, 1] -> tokens (257, 1280) float32 on the CPU, from the last but one layer.

        The image is resized to a square without cropping, as official Wan does.
        """
        ...
