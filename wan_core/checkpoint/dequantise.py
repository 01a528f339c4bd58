"""The arithmetic of quantized weights: value = stored * scale, multiplied in float32, rounded once."""

from __future__ import annotations

import torch
from torch import Tensor

from .nvfp4 import unpack_e2m1

__all__ = ["dequantise", "scale_fits"]


def dequantise(weight: Tensor, scale: Tensor | None, dtype: torch.dtype, whole_scale: Tensor | None = None) -> Tensor:
    """`weight` in `dtype`: (out, in) of any float dtype, or nvfp4, (out, in / 2) uint8.

    `scale` float: one value; one per row, (out,) or (out, 1); or one per block of a row, (out, blocks) or
    (out, blocks, 1). None: the weight as it is. `whole_scale`: one more value for the whole tensor, which each scale is
    multiplied by first, as ComfyUI does it.
    """
    if scale is None:
        return weight.to(dtype)
    values = unpack_e2m1(weight) if weight.dtype == torch.uint8 else weight.to(torch.float32, copy=True)
    scale = scale.to(torch.float32)
    if whole_scale is not None:
        scale = scale * whole_scale.to(torch.float32)
    if scale.numel() == 1:
        return values.mul_(scale.reshape(())).to(dtype)
    rows = scale.reshape(weight.shape[0], -1, 1)
    values.view(weight.shape[0], rows.shape[1], -1).mul_(rows)
    return values.to(dtype)


def scale_fits(weight: tuple[int, ...], scale: tuple[int, ...]) -> bool:
    """Whether a scale of that shape belongs to a weight of that one."""
    count = torch.Size(scale).numel()
    if count == 1:
        return True
    if len(weight) != 2 or not weight[0] or not scale or scale[0] != weight[0] or not count or count % weight[0]:
        return False
    return weight[1] % (count // weight[0]) == 0
