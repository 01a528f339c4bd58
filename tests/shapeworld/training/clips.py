"""Scenes as tensors: what the VAE trains on, and the captioned clips both models are measured on."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from torch import Tensor

from ..draw import Scene, render
from ..scenes import all_words, any_scene, captioned_scene, wide_scene
from ..wan_vae import TrainableVae


def as_video(scenes: Sequence[Scene], size: int = 64) -> Tensor:
    """(N, 3, T, size, size) in [-1, 1]"""
    frames = torch.stack([render(scene, size) for scene in scenes])
    return (frames / 127.5 - 1).permute(0, 4, 1, 2, 3).contiguous()


def any_clips(rng: random.Random, count: int, frames: int, size: int) -> Tensor:
    """Clips of the wide world."""
    return as_video([any_scene(rng, frames, size) for _ in range(count)], size)


def captioned_clips(seeds: Sequence[int], frames: int = 9) -> tuple[Tensor, Tensor]:
    """Every caption once per seed: clips (96 * seeds, 3, T, 64, 64) and the caption's number of each."""
    words = all_words()
    pairs = [(number, seed) for seed in seeds for number in range(len(words))]
    clips = as_video([captioned_scene(words[number], seed, frames) for number, seed in pairs])
    return clips, torch.tensor([number for number, _ in pairs])


def wide_clips(seed: int, count: int, frames: int = 9) -> Tensor:
    """Clips that no caption describes: (count, 3, T, 64, 64)."""
    rng = random.Random(seed)
    return as_video([wide_scene(rng, frames) for _ in range(count)])


@torch.no_grad()
def first_frame_channels(vae: TrainableVae, clips: Tensor) -> Tensor:
    """What an image-to-video model reads of a clip (N, 3, T, H, W): (N, 20, F, h, w).

    4 mask channels, 1 at the first latent frame; then 16 of the first frame followed by grey, encoded as one clip
    (Wan2.2 image2video.py).
    """
    shown = torch.zeros_like(clips)
    shown[:, :, 0] = clips[:, :, 0]
    with torch.autocast("cpu", torch.bfloat16):
        latents = torch.cat([vae.encode(some) for some in shown.split(16)]).float()
    mask = torch.zeros_like(latents[:, :4])
    mask[:, :, 0] = 1
    return torch.cat([mask, latents], 1)
