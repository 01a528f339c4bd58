"""A linear that runs only for its backward pass: the values it would return are never read.

The last product of a block is one when checkpointing runs the block again. The next block has its output already, and
a sum with a frozen gate needs for its gradients only where the gradient comes from, not what was added.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from .autocast import without_autocast


def unread(linear: nn.Module, x: Tensor) -> Tensor:
    """Returns what the graph takes for `linear(x)`: x (..., in) -> (..., out), with gradients, without values.

    A linear of another kind says by a method `unread` how it does without its product; one that has none, or whose
    weight is trained or of another dtype, is computed.
    """
    own = getattr(linear, "unread", None)
    return own(x) if own is not None else unread_product(linear, x)


def unread_product(linear: nn.Module, x: Tensor) -> Tensor:
    """Does what `unread` does of a linear that has no such method."""
    if type(linear) is not nn.Linear or linear.weight.requires_grad or linear.weight.dtype != x.dtype:
        return linear(x)
    return cast(Tensor, _Unread.apply(x, linear.weight))


def no_values(x: Tensor, width: int) -> Tensor:
    """Returns (..., width) of any value for x (..., in), in the memory of one."""
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
    """gradient (..., out), weight (out, in) -> (..., in), by the product that autograd runs for a linear."""
    return (gradient.flatten(0, -2) @ weight).unflatten(0, gradient.shape[:-1])
