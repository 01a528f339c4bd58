"""The sound and the reference image of HuMo: tokens of each latent frame's sound, attention to them, given channels.

B batch, F latent frames with those of reference images at the end, K sound tokens of a frame, D model width. Module
names equal the official ones. Source: HuMo; tests/support/peers.py compares it with ComfyUI's class, by vectors in
tests/fixtures.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..kernels import layer_norm, remade
from .attention import WanAttention
from .shape import WHISPER_WINDOW, Numerics, WanShape

SOUND_TOKENS = 16
"""K"""
_HIDDEN = 512
_MASK = 4
"""mask channels between the latent and the images of HuMo-17B"""
_EMPTY = torch.tensor(
    [
        [*map(float, line.split())]
        for line in (
            "0.8660 -0.4326 -0.0017 -0.4884 -0.5283 0.9207 -0.9896 0.4433 "
            "-0.5543 -0.0113 0.5753 -0.6000 -0.8346 -0.3497 -0.1926 -0.6938",
            "1.0869 -1.2370 0.0206 -0.4357 -0.6411 2.0307 -1.5972 1.2659 "
            "-0.8595 -0.4654 0.9638 -1.6330 -1.4310 -0.1098 -0.3856 -1.4583",
            "0.8642 -1.8583 0.1577 0.1350 -0.3641 2.5863 -1.9670 1.6065 "
            "-1.0475 -0.8678 1.1734 -1.8138 -1.5933 -0.7721 -0.3289 -1.3745",
        )
    ]
)
"""channels of an empty video's normalised latent, which HuMo-17B reads in place of images: frame 0, frame 1, later"""


def with_references(latent: Tensor, references: Tensor, channels: int) -> Tensor:
    """Returns the latent (B, C, F - R, H, W) and the references (B, C, R, H, W) behind it as `channels` channels.

    HuMo-1.7B has C of them. HuMo-17B has a mask and images besides: a reference is an image with mask 1 and latent 0.
    """
    if channels == latent.shape[1]:
        return torch.cat([latent, references], dim=2)
    empty = _EMPTY.to(latent).T[:, :, None, None]
    frame = torch.arange(latent.shape[2], device=latent.device).clamp(max=len(_EMPTY) - 1)
    images = empty.index_select(1, frame).expand(len(latent), -1, -1, *latent.shape[3:])
    video = torch.cat([functional.pad(latent, (0, 0, 0, 0, 0, 0, 0, _MASK)), images], dim=1)
    mask = torch.ones_like(references[:, :_MASK])
    return torch.cat([video, torch.cat([torch.zeros_like(references), mask, references], dim=1)], dim=2)


class AudioProjection(nn.Module):
    """Makes the sound tokens of each latent frame."""

    def __init__(self, shape: WanShape) -> None:
        super().__init__()
        features = math.prod(WHISPER_WINDOW) * shape.whisper_channels
        for name, layer in (
            ("glob_1", nn.Linear(features, _HIDDEN)),
            ("glob_2", nn.Linear(_HIDDEN, _HIDDEN)),
            ("glob_3", nn.Linear(_HIDDEN, SOUND_TOKENS * shape.audio_width)),
            ("glob_norm", nn.LayerNorm(shape.audio_width)),
        ):
            self.add_module(f"audio_proj_{name}", nn.ModuleDict({"layer": layer}))

    def forward(self, whisper: Tensor, silent: int, dtype: torch.dtype) -> Tensor:
        """whisper (B, F - `silent`, 8, 5, C) -> (B, F, K, audio_width) in `dtype`; the last `silent` frames hear
        silence."""
        first, second, last, norm = (self.get_submodule(f"{name}.layer") for name, _ in self.named_children())
        assert isinstance(norm, nn.LayerNorm)
        x = functional.pad(whisper.to(dtype).flatten(2), (0, 0, 0, silent))
        tokens = last(functional.relu(second(functional.relu(first(x))))).unflatten(-1, (SOUND_TOKENS, -1))
        return layer_norm(tokens, norm, dtype)


class _SoundAttention(WanAttention):
    def __init__(self, shape: WanShape, numerics: Numerics) -> None:
        super().__init__(shape, numerics)
        self.k, self.v = (nn.Linear(shape.audio_width, shape.dim) for _ in range(2))

    def forward(self, x: Tensor, sound: Tensor) -> Tensor:
        """x (B, n, D), n / F tokens of each frame; sound (B, F, K, audio_width); compute dtype -> (B, n, D)."""
        dtype, frames = self.numerics.qk_norm, sound.shape[0] * sound.shape[1]
        query = self._heads(self.norm_q(self.q(x), dtype)).reshape(
            frames, -1, self.num_heads, x.shape[2] // self.num_heads
        )
        key, value = (self._heads(rows).flatten(0, 1) for rows in (self.norm_k(self.k(sound), dtype), self.v(sound)))
        return self.o(self._attend(query, key, value).reshape(x.shape))


class SoundLayer(nn.Module):
    """Attention of the video tokens to the sound of their latent frame, between cross-attention and feed-forward."""

    def __init__(self, shape: WanShape, numerics: Numerics) -> None:
        super().__init__()
        self.numerics = numerics
        self.audio_cross_attn = _SoundAttention(shape, numerics)
        self.norm1_audio = nn.LayerNorm(shape.dim, shape.eps)

    def forward(self, tokens: Tensor, update: Tensor, sound: Tensor) -> tuple[Tensor, Tensor]:
        """Returns tokens plus update (B, n, D) in the residual dtype, and the update of this layer (B, n, D)."""
        tokens = tokens + update.to(tokens.dtype)

        def normed() -> Tensor:
            return layer_norm(tokens, self.norm1_audio, self.numerics.norm).to(self.numerics.compute)

        x = normed()
        with remade(x, normed):
            return tokens, self.audio_cross_attn(x, sound)
