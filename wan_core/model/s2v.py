"""Sound conditioning of Wan 2.2 S2V: sound tokens per latent frame, attention to them, and tokens behind the video.

Shapes as in transformer.py; K sound tokens of a latent frame, A rows of sound (F, or 2F with frames before the clip).
Module names below `casual_audio_encoder` and `frame_packer` equal the official ones. The official modules
`audio_injector.injector.i` and `injector_adain_layers.i` are here a part of the block before them (`checkpoint.keys`).
Source of the maths: Wan2.2 S2V, as ComfyUI's class has it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..kernels import Span, cast_linear, shift_and_scale
from .attention import WanAttention
from .conditioning import Conditioning
from .face import CausalConv, plain_norm
from .shape import FRAMES_BEFORE, Numerics, WanShape

_HEADS = 4
"""of the sound encoder: each makes one token of a latent frame, and one learned token is added"""
_EPS = 1e-5
"""of the norm that the global token of a frame modulates"""
_PACKED = ((1, 1), (2, 2), (16, 4))
"""the frames before the clip, nearest first: number of latent frames, and how many frames, and times how many rows and
columns of a token, one packed token covers"""
assert sum(frames for frames, _ in _PACKED) == FRAMES_BEFORE
_REFERENCE_TIME, _REFERENCE_GAP = 30, 9
"""RoPE time of the reference image: at least the first, and the second behind the last frame"""


class SoundEncoder(nn.Module):
    """Encodes features of sound, four per latent frame, as K tokens per latent frame and one global token."""

    def __init__(self, shape: WanShape, numerics: Numerics) -> None:
        super().__init__()
        self.numerics = numerics
        width, dim = shape.sound_channels, shape.dim
        self.weights = nn.Parameter(torch.empty(1, shape.sound_depth, 1, 1))
        self.encoder = nn.ModuleDict(
            {
                "conv1_local": CausalConv(width, dim // 4 * _HEADS),
                "conv1_global": CausalConv(width, dim // 4),
                "conv2": CausalConv(dim // 4, dim // 2),
                "conv3": CausalConv(dim // 2, dim),
                "final_linear": nn.Linear(dim, dim),
            }
        )
        self.encoder.register_parameter("padding_tokens", nn.Parameter(torch.empty(1, 1, 1, dim)))

    def forward(self, sound: Tensor) -> Tensor:
        """sound (B, layers, C, 4F) -> (B, F, K + 1, D) in the compute dtype, the global token last."""
        compute = self.numerics.compute
        share = functional.silu(self.weights.to(compute))
        mixed = ((sound.to(compute) * share) / share.sum(1, keepdim=True)).sum(1).transpose(1, 2)
        local = self.encoder["conv1_local"](mixed).unflatten(2, (_HEADS, -1)).transpose(1, 2).flatten(0, 1)
        tokens = self._per_frame(local).unflatten(0, (len(sound), _HEADS)).transpose(1, 2)
        learned = self.encoder.get_parameter("padding_tokens").to(compute).expand(*tokens.shape[:2], -1, -1)
        pooled = cast_linear(
            self.encoder["final_linear"], self._per_frame(self.encoder["conv1_global"](mixed)), compute
        )
        return torch.cat([tokens, learned, pooled.unsqueeze(2)], dim=2)

    def _per_frame(self, x: Tensor) -> Tensor:
        """(P, 4F, D / 4) -> (P, F, D)."""
        return self._active(self.encoder["conv3"](self._active(self.encoder["conv2"](self._active(x), 2)), 2))

    def _active(self, x: Tensor) -> Tensor:
        return functional.silu(plain_norm(x, self.numerics))


class SoundAttention(WanAttention):
    """Attention of the video tokens to the sound tokens of their latent frame."""

    def __init__(self, shape: WanShape, numerics: Numerics) -> None:
        super().__init__(shape, numerics)
        self.adain = nn.Linear(shape.dim, 2 * shape.dim)

    def forward(self, tokens: Tensor, sound: Tensor | None, rows: int) -> Tensor:
        """tokens (B, n, D) of `rows` rows in the residual dtype -> same shape and dtype.

        sound (B, A, K + 1, D): of the first A rows, the video's; the tokens behind them stay as they are.
        """
        if sound is None or not sound.shape[1]:
            return tokens
        heard = tokens.shape[1] // rows * sound.shape[1]
        compute, dtype, batch = self.numerics.compute, self.numerics.qk_norm, len(tokens)
        local, pooled = sound[:, :, :-1].flatten(0, 1), sound[:, :, -1]
        shift, scale = self.adain(functional.silu(pooled)).chunk(2, -1)
        x = shift_and_scale(tokens[:, :heard], shift, scale, _EPS, self.numerics.norm, compute)
        query = self._heads(self.norm_q(self.q(x), dtype).view(len(local), -1, x.shape[-1]))
        key, value = self._heads(self.norm_k(self.k(local), dtype)), self._heads(self.v(local))
        update = self.o(self._attend(query, key, value)).view(batch, heard, -1).to(tokens.dtype)
        if heard == tokens.shape[1]:
            return tokens + update
        return torch.cat([tokens[:, :heard] + update, tokens[:, heard:]], dim=1)


def frame_packer(dim: int, channels: int) -> nn.ModuleDict:
    """Returns the layers that embed the frames before a clip, the more coarsely the longer ago."""
    names = ("proj", "proj_2x", "proj_4x")
    kernels = [(by, 2 * by, 2 * by) for _, by in _PACKED]
    return nn.ModuleDict(
        {name: nn.Conv3d(channels, dim, kernel, kernel) for name, kernel in zip(names, kernels, strict=True)}
    )


def sound_tokens(model: Any, latent: Tensor, given: Conditioning) -> Tensor:
    """Returns the tokens (B, N, D) in the compute dtype: video, reference image, frames before the clip.

    `model`: the WanTransformer, whose module imports this one.
    """
    compute = model.numerics.compute
    own, reference, before = model.trainable_cond_mask.weight.to(compute)
    video = _embedded(model.patch_embedding, latent, compute)
    if given.pose_video is not None:
        video = video + _embedded(model.cond_encoder, given.pose_video, compute)
    found = [video + own]
    if given.reference is not None:
        found.append(_embedded(model.patch_embedding, given.reference.unsqueeze(2), compute) + reference)
    if given.frames_before is not None:
        parts = given.frames_before.split([frames for frames, _ in reversed(_PACKED)], dim=2)
        layers = model.frame_packer.values()
        found += [_embedded(layer, part, compute) + before for layer, part in zip(layers, reversed(parts), strict=True)]
    return torch.cat(found, dim=1)


def sound_spans(grid: tuple[int, int, int], given: Conditioning) -> tuple[Span, ...]:
    """Returns the RoPE positions of `sound_tokens`; `grid`: frames, rows and columns of the video's tokens."""
    return Span(grid), *_spans_behind(
        grid, reference=given.reference is not None, before=given.frames_before is not None
    )


def tokens_behind(grid: tuple[int, int, int], given: Conditioning) -> int:
    """Returns the number of tokens of `sound_tokens` behind the video."""
    return sum(math.prod(span.grid) for span in sound_spans(grid, given)[1:])


def sizes_behind(latent: tuple[int, ...], names: Collection[str]) -> tuple[tuple[int, int, int], ...]:
    """Returns latent frames, height and width of as many tokens as are behind a clip (F, H, W) with these tensors.

    One size for a reference image, three for the frames before the clip.
    """
    grid = (latent[0], latent[1] // 2, latent[2] // 2)
    spans = _spans_behind(grid, reference="reference" in names, before="frames_before" in names)
    return tuple((span.grid[0], 2 * span.grid[1], 2 * span.grid[2]) for span in spans)


def given_behind(sizes: Sequence[object]) -> tuple[bool, bool]:
    """Returns whether clips with the `sizes_behind` have a reference image, and frames before them."""
    return len(sizes) % len(_PACKED) == 1, len(sizes) >= len(_PACKED)


def _spans_behind(grid: tuple[int, int, int], *, reference: bool, before: bool) -> tuple[Span, ...]:
    """Packed tokens of the frames before the clip are spread evenly from the first to the last row and column."""
    frames, height, width = grid
    found: list[Span] = []
    if reference:
        found.append(Span((1, height, width), (max(_REFERENCE_TIME, frames + _REFERENCE_GAP), 0.0, 0.0)))
    start = 0
    for count, by in _PACKED if before else ():
        start -= count
        rows, columns = height // by, width // by
        step = (1.0, (height - 1) / max(rows - 1, 1), (width - 1) / max(columns - 1, 1))
        found.append(Span((count // by, rows, columns), (start, 0.0, 0.0), step))
    return tuple(found)


def sound_timesteps(timestep: Tensor, frames: int, given: Conditioning) -> tuple[Tensor, int]:
    """timestep (B,) -> one per row of tokens (B, T), 0 behind the video, and the number of the video's rows.

    A row is a latent frame; with frames before the clip half of one, since these are packed to one and a half.
    """
    halves = 1 if given.frames_before is None else 2
    clean = halves * (given.reference is not None) + 3 * (given.frames_before is not None)
    own = timestep.unsqueeze(1).expand(-1, frames * halves)
    return torch.cat([own, own.new_zeros(len(own), clean)], dim=1), frames * halves


def sound_rows(sound: Tensor, rows: int) -> Tensor:
    """sound (B, F, K + 1, D) -> (B, `rows`, K + 1, D), each frame repeated for its rows."""
    return sound.repeat_interleave(rows // sound.shape[1], dim=1)


def _embedded(layer: nn.Module, video: Tensor, dtype: torch.dtype) -> Tensor:
    """video (B, C, F, H, W) -> its tokens (B, n, D), computed in `dtype`."""
    assert isinstance(layer, nn.Conv3d)
    assert layer.bias is not None
    stride = cast("tuple[int, int, int]", layer.stride)
    return functional.conv3d(video.to(dtype), layer.weight.to(dtype), layer.bias.to(dtype), stride).flatten(2).mT
