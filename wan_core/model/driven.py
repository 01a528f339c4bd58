"""Tokens of SCAIL: reference images in front of the video, a half-size pose video behind it, and their positions.

Shapes as in transformer.py; R reference images. Sources: SCAIL and SCAIL-2; tests/support/peers.py compares it with
ComfyUI's classes, by vectors in tests/fixtures.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..errors import ConfigError
from ..kernels import Span
from .conditioning import Conditioning
from .embed import embed_patches
from .shape import WanShape

_AWAY = 120.0
"""RoPE offset in tokens: in columns to the pose video; in rows to the reference, if it replaces a character"""


def driven_tokens(model: Any, latent: Tensor, given: Conditioning) -> Tensor:
    """Returns the tokens (B, N, D) in the compute dtype: references with the primary one last, video, pose video.

    `model`: the WanTransformer, whose module imports this one.
    """
    shape, compute = model.shape, model.numerics.compute
    assert given.references is not None
    assert given.pose_stream is not None
    given_first = _flagged(_primary_last(given.references.to(latent.dtype)), shape.flag_channels, 1.0)
    video = torch.cat([given_first, _flagged(latent, shape.flag_channels, 0.0)], dim=2)
    patches = embed_patches(model.patch_embedding, video, compute)
    pose = _flagged(given.pose_stream.to(latent.dtype), shape.flag_channels, 1.0)
    poses = embed_patches(model.patch_embedding_pose, pose, compute)
    if given.reference_masks is not None and given.pose_masks is not None:
        masks, layer = _primary_last(given.reference_masks), model.patch_embedding_mask
        nobody = masks.new_zeros(*masks.shape[:2], *latent.shape[2:])
        patches = patches + embed_patches(layer, torch.cat([masks, nobody], dim=2), compute)
        poses = poses + embed_patches(layer, given.pose_masks, compute)
    return torch.cat([part.flatten(2).transpose(1, 2) for part in (patches, poses)], dim=1)


def driven_spans(grid: tuple[int, int, int], references: int, *, replaces: bool) -> tuple[Span, ...]:
    """Returns the RoPE positions of `driven_tokens`; `grid`: frames, rows and columns of the video's tokens.

    A token of the pose video covers two rows and two columns of the video; its position is their centre, 120 columns
    away. References come before the video in time. If `replaces`, the primary reference has the time of the first
    frame, 120 rows away.
    """
    frames, height, width = grid
    first = references - 1 if replaces else references
    small, middle = (frames, height // 2, width // 2), (first, 0.5, _AWAY + 0.5)
    pose = Span(small, middle, (1.0, 2.0, 2.0))
    if not replaces:
        return Span((references + frames, height, width)), pose
    return Span((references, height, width), (0.0, _AWAY, 0.0)), Span(grid, (first, 0.0, 0.0)), pose


def refuse_driven(shape: WanShape, what: str, remedy: str) -> None:
    """Raises ConfigError if the model has tokens behind the video; `what`: the feature, start of the sentence."""
    kinds = (
        (shape.pose_stream_channels, "SCAIL, whose pose tokens are not frames of the video"),
        (shape.whisper_channels, "HuMo, whose reference image follows the video"),
        (shape.sound_channels, "S2V, whose reference tokens are not frames of the video"),
    )
    for channels, whose in kinds:
        if channels:
            raise ConfigError(f"{what} does not work with {whose}. {remedy}.")


def _flagged(latent: Tensor, channels: int, value: float) -> Tensor:
    return torch.cat([latent, latent.new_full((latent.shape[0], channels, *latent.shape[2:]), value)], dim=1)


def _primary_last(references: Tensor) -> Tensor:
    return references.roll(-1, dims=2)
