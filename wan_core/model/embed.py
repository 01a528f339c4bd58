"""Embeddings of the inputs that only some variants have: image tokens, camera rays, a reference frame.

B batch, F latent frames, H and W latent height and width, D model width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..kernels import cast_linear, layer_norm
from .block import PATCH
from .shape import Numerics, WanShape


class ImageEmbedding(nn.Module):
    """Projects CLIP vision tokens to the model's width (official `MLPProj`)."""

    def __init__(self, shape: WanShape, numerics: Numerics) -> None:
        super().__init__()
        self.numerics = numerics
        width = shape.image_dim
        self.proj = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, width),
            nn.GELU(),
            nn.Linear(width, shape.dim),
            nn.LayerNorm(shape.dim),
        )
        self.emb_pos = nn.Parameter(torch.empty(1, shape.image_positions, width)) if shape.image_positions else None

    def forward(self, image_tokens: Tensor) -> Tensor:
        """image_tokens (B, M, image_dim) -> (B, M, D) in the compute dtype; GELU without the tanh approximation."""
        norm, compute = self.numerics.norm, self.numerics.compute
        first_norm, first, gelu, last, last_norm = self.proj
        assert isinstance(first_norm, nn.LayerNorm)
        assert isinstance(last_norm, nn.LayerNorm)
        x = image_tokens.to(norm)
        if self.emb_pos is not None:
            x = x + self.emb_pos[:, : x.shape[1]].to(norm)
        x = gelu(cast_linear(first, layer_norm(x, first_norm, norm), compute))
        return layer_norm(cast_linear(last, x, compute), last_norm, norm).to(compute)


class _CameraResidual(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(dim, dim, kernel_size=3, padding=1) for _ in range(2))


class CameraAdapter(nn.Module):
    """Encodes camera rays at pixel resolution as one vector per token (VideoX-Fun `SimpleAdapter`)."""

    def __init__(self, shape: WanShape, numerics: Numerics) -> None:
        super().__init__()
        self.numerics, self.stride = numerics, shape.camera_stride
        folded = shape.camera_channels * shape.camera_stride**2
        self.conv = nn.Conv2d(folded, shape.dim, kernel_size=PATCH[1:], stride=PATCH[1:])
        self.residual_blocks = nn.Sequential(_CameraResidual(shape.dim))

    def forward(self, camera: Tensor) -> Tensor:
        """camera (B, C, F, stride * H, stride * W) -> (B, D, F, H/2, W/2) in the compute dtype."""
        dtype = self.numerics.compute
        frames = camera.to(dtype).transpose(1, 2).flatten(0, 1)
        x = _conv(self.conv, functional.pixel_unshuffle(frames, self.stride), dtype)
        for layer in self.residual_blocks:
            assert isinstance(layer, _CameraResidual)
            x = x + _conv(layer.conv2, functional.relu(_conv(layer.conv1, x, dtype)), dtype)
        return x.unflatten(0, (camera.shape[0], -1)).transpose(1, 2)


def embed_patches(layer: nn.Conv3d, video: Tensor, dtype: torch.dtype) -> Tensor:
    """video (B, C, F, H, W) -> (B, D, F, H/2, W/2), computed in `dtype`."""
    bias = None if layer.bias is None else layer.bias.to(dtype)
    return functional.conv3d(video.to(dtype), layer.weight.to(dtype), bias, stride=PATCH)


def embed_frame(layer: nn.Conv2d, frame: Tensor, dtype: torch.dtype) -> Tensor:
    """frame (B, C, H, W) -> its tokens (B, H/2 * W/2, D), computed in `dtype`."""
    return _conv(layer, frame, dtype).flatten(2).transpose(1, 2)


def _conv(layer: nn.Conv2d, x: Tensor, dtype: torch.dtype) -> Tensor:
    """Runs a frozen convolution in `dtype`, independent of the dtype of its weight."""
    bias = None if layer.bias is None else layer.bias.to(dtype)
    return functional.conv2d(x.to(dtype), layer.weight.to(dtype), bias, layer.stride, layer.padding)
