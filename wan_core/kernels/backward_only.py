"""A linear that runs only for its backward pass, without computing its output.

During recompute, this is the last linear of a block. The next block already has its output, and the sum with a frozen
gate after it needs no values for its gradients.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from .recompute import without_autocast


def unread(linear: nn.Module, x: Tensor) -> Tensor:
    """Returns a tensor (..., out) with the graph of `linear(x)`, x (..., in), and undefined values.

    Other kinds of linears have a method `unread` for this. A linear without one is computed, and so is one with a
    trained weight or a weight of another dtype.
    """
    own = getattr(linear, "unread", None)
    return own(x) if own is not None else unread_product(linear, x)


def unread_product(linear: nn.Module, x: Tensor) -> Tensor:
    """Returns `unread` of a linear without such a method."""
    if type(linear) is not nn.Linear or linear.weight.requires_grad or linear.weight.dtype != x.dtype:
        return linear(x)
    return cast(Tensor, _Unread.apply(x, linear.weight))


def no_values(x: Tensor, width: int) -> Tensor:
    """Returns (..., width) with undefined values for x (..., in); it has the memory of one value."""
    return x.new_empty(()).expand(*x.shape[:-1], width)


class _Unread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(weight)
        return no_values(x, weight.shape[0])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (gradient,), (weight,) = gradients, ctx.saved_tensors
        if not ctx.needs_input_grad[0]:
            return None, None
        return without_autocast(gradient.device.type, _of_input, gradient, weight), None


def _of_input(gradient: Tensor, weight: Tensor) -> Tensor:
    """gradient (..., out), weight (out, in) -> (..., in), with the same product as autograd's for a linear."""
    return (gradient.flatten(0, -2) @ weight).unflatten(0, gradient.shape[:-1])
