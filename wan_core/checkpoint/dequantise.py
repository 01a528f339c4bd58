"""The arithmetic of 8-bit weights: value = stored * scale, multiplied in float32, rounded once."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["dequantise", "scale_fits"]


def dequantise(weight: Tensor, scale: Tensor | None, dtype: torch.dtype) -> Tensor:
    """`weight` (out, in), any float dtype, in `dtype`.

    `scale` float: one value; one per row, (out,) or (out, 1); or one per block of a row, (out, blocks) or
    (out, blocks, 1). None: the weight as it is.
    """
    if scale is None:
        return weight.to(dtype)
    values = weight.to(torch.float32, copy=True)
    if scale.numel() == 1:
        return values.mul_(scale.to(torch.float32).reshape(())).to(dtype)
    rows = scale.to(torch.float32).reshape(weight.shape[0], -1, 1)
    values.view(weight.shape[0], rows.shape[1], -1).mul_(rows)
    return values.to(dtype)


def scale_fits(weight: tuple[int, ...], scale: tuple[int, ...]) -> bool:
    """Whether a scale of that shape belongs to a weight of that one."""
    count = torch.Size(scale).numel()
    if count == 1:
        return True
    if len(weight) != 2 or not scale or scale[0] != weight[0] or count % weight[0]:
        return False
    return weight[1] % (count // weight[0]) == 0
