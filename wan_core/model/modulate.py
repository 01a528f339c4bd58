"""The few elementwise steps of a Wan block, with their casts written down. B batch, N tokens, D width, T time rows."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["cast_linear", "gated_add", "layer_norm", "shift_and_scale"]


def cast_linear(layer: nn.Module, x: Tensor, dtype: torch.dtype) -> Tensor:
    """A frozen linear computed in `dtype`, whatever its weight is stored in."""
    assert isinstance(layer, nn.Linear)
    # torchao's tensors keep their own dtype under `.to`; outside the blocks they are rare and small, so unpack them.
    weight = layer.weight.dequantize() if hasattr(layer.weight, "qdata") else layer.weight
    return functional.linear(x.to(dtype), weight.to(dtype), layer.bias.to(dtype))


def layer_norm(x: Tensor, norm: nn.LayerNorm, dtype: torch.dtype) -> Tensor:
    """LayerNorm with scale and bias, computed and returned in `dtype`; x (..., D)."""
    return functional.layer_norm(
        x.to(dtype), norm.normalized_shape, norm.weight.to(dtype), norm.bias.to(dtype), norm.eps
    )


def shift_and_scale(x: Tensor, shift: Tensor, scale: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """LayerNorm(x) * (1 + scale) + shift in `dtype`; x (B, N, D), shift and scale (B, T, D), N a multiple of T."""
    normed = functional.layer_norm(x.to(dtype), (x.shape[-1],), eps=eps)
    if shift.shape[1] == 1:
        return torch.addcmul(shift.to(dtype), normed, 1 + scale.to(dtype))
    rows = normed.unflatten(1, (shift.shape[1], -1))
    return torch.addcmul(shift.to(dtype).unsqueeze(2), rows, 1 + scale.to(dtype).unsqueeze(2)).flatten(1, 2)


def gated_add(x: Tensor, update: Tensor, gate: Tensor) -> Tensor:
    """x + update * gate in the wider of x's and gate's dtype, stored in x's; gate (B, T, D)."""
    wide = torch.promote_types(x.dtype, gate.dtype)
    if gate.shape[1] == 1:
        return torch.addcmul(x.to(wide), update.to(wide), gate.to(wide)).to(x.dtype)
    rows = update.to(wide).unflatten(1, (gate.shape[1], -1)) * gate.to(wide).unsqueeze(2)
    return (x.to(wide) + rows.flatten(1, 2)).to(x.dtype)
