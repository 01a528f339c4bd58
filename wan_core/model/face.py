"""Face conditioning of Wan 2.2 Animate: a frozen motion encoder, face tokens per latent frame, attention to them.

B batch, T pixel frames of the face video, F latent frames, N tokens, K face tokens of a latent frame, D model width.
Module names below `motion_encoder` and `face_encoder` equal the official ones. The official module
`face_adapter.fuser_blocks.i` is here a part of the block before it (`checkpoint.keys` renames it), so it is placed,
offloaded, quantized and recomputed with that block. Source of the maths: Wan2.2 animate.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..kernels import attention_kernel
from .attention import WanRMSNorm
from .shape import Numerics, WanShape

_WIDTHS = (32, 64, 128, 256, 512, 512, 512, 512)
"""channels of the picture encoder's layers; each layer halves height and width"""
_FEATURES, _DIRECTIONS = 512, 20
"""width of a picture's features; number of motion directions"""
_HEADS, _HEAD_WIDTH = 4, 1024
"""heads of the face encoder and their width; each head makes one face token, and one learned token is added"""
_TOGETHER = 8
"""pictures encoded in one batch"""
_EPS = 1e-6


class _Scaled(nn.Module):
    """A linear or convolution whose weight (out, in, ...) is divided by the root of its fan-in."""

    def __init__(self, *sizes: int, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(*sizes))
        self.bias = nn.Parameter(torch.empty(sizes[0])) if bias else None
        self.scale = 1 / math.sqrt(math.prod(sizes[1:]))

    def forward(self, x: Tensor, stride: int = 1) -> Tensor:
        weight = self.weight.to(x.dtype) * self.scale
        bias = None if self.bias is None else self.bias.to(x.dtype)
        if weight.ndim == 2:
            return functional.linear(x, weight, bias)
        padding = weight.shape[-1] // 2 if stride == 1 and weight.shape[-1] == 3 else 0
        return functional.conv2d(x, weight, bias, stride, padding)


class _Leaky(nn.Module):
    """Bias, then leaky ReLU scaled to keep the variance."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.empty(1, channels, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return functional.leaky_relu(x + self.bias.to(x.dtype), 0.2) * math.sqrt(2)


class _Blur(nn.Module):
    """Blurs with the kernel (1, 3, 3, 1) in both directions, padded for a `kernel_size` convolution of stride 2."""

    def __init__(self, kernel_size: int) -> None:
        super().__init__()
        self.padding = (kernel_size + 1) // 2

    def forward(self, x: Tensor) -> Tensor:
        row = torch.tensor((1.0, 3.0, 3.0, 1.0), dtype=x.dtype, device=x.device) / 8
        channels = x.shape[1]
        kernel = (row[:, None] * row).expand(channels, 1, 4, 4)
        return functional.conv2d(x, kernel, padding=self.padding, groups=channels)


class _Halved(nn.Sequential):
    """Blur, convolution of stride 2 and, if `active`, the activation."""

    def __init__(self, before: int, behind: int, kernel_size: int, *, active: bool) -> None:
        convolution = _Scaled(behind, before, kernel_size, kernel_size)
        super().__init__(_Blur(kernel_size), convolution, *([_Leaky(behind)] if active else ()))

    def forward(self, input: Tensor) -> Tensor:
        blur, convolution, *activation = self
        x = convolution(blur(input), 2)
        return activation[0](x) if activation else x


class _Residual(nn.Module):
    def __init__(self, before: int, behind: int) -> None:
        super().__init__()
        self.conv1 = nn.Sequential(_Scaled(before, before, 3, 3), _Leaky(before))
        self.conv2 = _Halved(before, behind, 3, active=True)
        self.skip = _Halved(before, behind, 1, active=False)

    def forward(self, x: Tensor) -> Tensor:
        return (self.conv2(self.conv1(x)) + self.skip(x)) / math.sqrt(2)


class MotionEncoder(nn.Module):
    """Encodes pictures of a face as motion vectors: a sum of orthogonal directions with predicted lengths."""

    def __init__(self) -> None:
        super().__init__()
        first = nn.Sequential(_Scaled(_WIDTHS[0], 3, 1, 1), _Leaky(_WIDTHS[0]))
        last = _Scaled(_FEATURES, _WIDTHS[-1], 4, 4)
        convs = nn.Sequential(first, *(_Residual(*pair) for pair in pairwise(_WIDTHS)), last)
        sizes = (*(_FEATURES for _ in range(4)), _DIRECTIONS)
        linears = nn.Sequential(*(_Scaled(size, _FEATURES, bias=True) for size in sizes))
        self.enc = nn.ModuleDict({"net_app": nn.ModuleDict({"convs": convs}), "fc": linears})
        directions = nn.ParameterDict({"weight": nn.Parameter(torch.empty(_FEATURES, _DIRECTIONS))})
        self.dec = nn.ModuleDict({"direction": directions})

    @torch.no_grad()
    def forward(self, pictures: Tensor, dtype: torch.dtype) -> Tensor:
        """pictures (P, 3, 512, 512) in [-1, 1] -> motion (P, 512) in `dtype`, without gradients."""
        weight: Tensor = self.get_parameter("dec.direction.weight")
        convs, linears = self.get_submodule("enc.net_app.convs"), self.get_submodule("enc.fc")
        wide = torch.promote_types(dtype, torch.float32)
        nudge = 1e-8 * torch.eye(*weight.shape, dtype=wide, device=weight.device)
        directions = torch.linalg.qr(weight.to(wide) + nudge).Q.T.to(dtype)
        found = [
            (linears(convs(some.to(dtype)).flatten(1)).unsqueeze(-1) * directions).sum(1)
            for some in pictures.split(_TOGETHER)
        ]
        return torch.cat(found)


class CausalConv(nn.Module):
    """A causal convolution over time; it pads by repeating the first frame."""

    def __init__(self, before: int, behind: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(before, behind, 3)

    def forward(self, x: Tensor, stride: int = 1) -> Tensor:
        """x (P, T, before) -> (P, T / stride rounded up, behind)."""
        frames = functional.pad(x.transpose(1, 2), (2, 0), mode="replicate")
        weight, bias = self.conv.weight.to(x.dtype), self.conv.bias
        assert bias is not None
        return functional.conv1d(frames, weight, bias.to(x.dtype), stride).transpose(1, 2)


class FaceEncoder(nn.Module):
    """Encodes the motion of a face as K tokens per latent frame."""

    def __init__(self, shape: WanShape, numerics: Numerics) -> None:
        super().__init__()
        self.numerics = numerics
        self.conv1_local = CausalConv(_FEATURES, _HEADS * _HEAD_WIDTH)
        self.conv2, self.conv3 = (CausalConv(_HEAD_WIDTH, _HEAD_WIDTH) for _ in range(2))
        self.out_proj = nn.Linear(_HEAD_WIDTH, shape.dim)
        self.padding_tokens = nn.Parameter(torch.empty(1, 1, 1, shape.dim))

    def forward(self, motion: Tensor, frames: int) -> Tensor:
        """motion (B, T, 512) in the compute dtype -> (B, `frames`, K, D); zeros in the reference image's frame."""
        batch = len(motion)
        heads = self.conv1_local(motion).unflatten(2, (_HEADS, -1)).transpose(1, 2).flatten(0, 1)
        heads = self._active(self.conv2(self._active(heads), 2))
        heads = self._active(self.conv3(heads, 2))
        tokens = self.out_proj(heads).unflatten(0, (batch, _HEADS)).transpose(1, 2)
        learned = self.padding_tokens.to(tokens.dtype).expand(batch, tokens.shape[1], -1, -1)
        tokens = torch.cat([tokens, learned], dim=2)[:, : frames - 1]
        return functional.pad(tokens, (0, 0, 0, 0, 1, frames - 1 - tokens.shape[1]))

    def _active(self, x: Tensor) -> Tensor:
        return functional.silu(plain_norm(x, self.numerics))


class FaceAttention(nn.Module):
    """Attention of the video tokens to the face tokens of their latent frame."""

    def __init__(self, shape: WanShape, numerics: Numerics) -> None:
        super().__init__()
        self.num_heads, self.numerics = shape.num_heads, numerics
        self.kernel = attention_kernel("sdpa")
        self.linear1_kv, self.linear1_q = nn.Linear(shape.dim, 2 * shape.dim), nn.Linear(shape.dim, shape.dim)
        self.linear2 = nn.Linear(shape.dim, shape.dim)
        head_dim = shape.dim // shape.num_heads
        self.q_norm, self.k_norm = WanRMSNorm(head_dim, _EPS), WanRMSNorm(head_dim, _EPS)

    def forward(self, tokens: Tensor, face: Tensor) -> Tensor:
        """tokens (B, n, D) in the residual dtype, n / F of each frame; face (B, F, K, D) -> (B, n, D)."""
        dtype, inside = self.numerics.qk_norm, self.numerics.attention or self.numerics.compute
        by_frame = (face.shape[0] * face.shape[1], -1, self.num_heads)
        query = self.linear1_q(plain_norm(tokens, self.numerics)).reshape(*by_frame, self.q_norm.weight.shape[0])
        both = self.linear1_kv(plain_norm(face, self.numerics)).unflatten(-1, (2, self.num_heads, -1)).flatten(0, 1)
        key, value = both.unbind(2)
        parts = self.q_norm(query, dtype), self.k_norm(key, dtype), value
        attended = self.kernel(*(part.to(inside) for part in parts)).to(self.numerics.compute)
        return tokens + self.linear2(attended.reshape(*tokens.shape[:2], -1)).to(tokens.dtype)


def plain_norm(x: Tensor, numerics: Numerics) -> Tensor:
    """LayerNorm without scale and bias, computed in the norm dtype; x (..., width) -> same shape, compute dtype."""
    return functional.layer_norm(x.to(numerics.norm), x.shape[-1:], eps=_EPS).to(numerics.compute)
