"""Tiny models of Wan 2.2 Animate, whose motion encoder (0.5 s a picture) is replaced."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from wan_core.model import WanTransformer

FACED: dict[str, Any] = {"pose_channels": 16, "face_layers": (0, 2)}
"""of a shape with three layers"""


def first_values(pictures: Tensor, dtype: torch.dtype) -> Tensor:
    """Stands for the motion encoder: pictures (P, 3, 512, 512) -> (P, 512)."""
    return pictures.flatten(1)[:, :512].to(dtype)


class _FirstValues(nn.Module):
    def forward(self, pictures: Tensor, dtype: torch.dtype) -> Tensor:
        return first_values(pictures, dtype)


def quick(model: WanTransformer) -> WanTransformer:
    """Returns the model without its motion encoder, where it has one."""
    if model.shape.face_layers:
        model.motion_encoder = _FirstValues()  # pyright: ignore[reportAttributeAccessIssue]
    return model


def without_motion_encoder() -> AbstractContextManager[Any]:
    """Inside, models are built without the 25 million weights of their motion encoder."""
    return mock.patch("wan_core.model.transformer.MotionEncoder", _FirstValues)


def face_inputs(clips: int, frames: int, height: int, width: int, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """Returns a random pose and face for latents of `frames`, the reference image counted. Of a face the values that
    `first_values` reads are random, the others 0: a third of a second to draw."""
    pose = torch.randn(clips, 16, frames - 1, height, width, dtype=dtype)
    face = torch.zeros(clips, 3, 4 * frames - 7, 512, 512, dtype=dtype)
    face[:, 0, :, 0] = torch.randn(clips, 4 * frames - 7, 512, dtype=dtype)
    return {"pose": pose, "face": face}
