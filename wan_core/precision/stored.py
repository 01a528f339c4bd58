"""Frozen linears that keep the 8- or 4-bit weights of their file: dequantised inside, in forward and again in backward.

Autograd would keep every dequantised weight until the backward pass; here only the stored one is kept.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..checkpoint import dequantise

__all__ = ["StoredLinear"]


class StoredLinear(nn.Linear):
    """y = x @ (weight * scale).T + bias with a frozen weight as `dequantise` takes it; computes in x's dtype.

    Gradient flows to x only. An `nn.Linear`, so that adapters and placement treat it as one.
    """

    scale: Tensor | None
    whole_scale: Tensor | None

    def __init__(self, weight: Tensor, scale: Tensor | None, *, bias: bool, whole_scale: Tensor | None = None) -> None:
        values_per_item = 2 if weight.dtype == torch.uint8 else 1
        super().__init__(weight.shape[1] * values_per_item, weight.shape[0], bias=bias, device="meta")
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.register_buffer("scale", scale)
        self.register_buffer("whole_scale", whole_scale)
        self.requires_grad_(False)

    def forward(self, input: Tensor) -> Tensor:
        """input (..., in) -> (..., out)."""
        return _Linear.apply(input, self.weight, self.scale, self.whole_scale, self.bias)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, scale: Tensor | None, whole_scale: Tensor | None, bias: Tensor | None
    ) -> Tensor:
        ctx.save_for_backward(weight, scale, whole_scale)
        values = dequantise(weight, scale, x.dtype, whole_scale)
        return functional.linear(x, values, None if bias is None else bias.to(x.dtype))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, None, None, None]:
        weight, scale, whole_scale = ctx.saved_tensors
        (gradient,) = gradients
        if not ctx.needs_input_grad[0]:
            return None, None, None, None, None
        return gradient @ dequantise(weight, scale, gradient.dtype, whole_scale), None, None, None, None
