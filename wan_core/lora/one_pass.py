"""A frozen linear and its LoRA as one autograd node: y = base(x) + scale * (x @ A.T) @ B.T, A (r, in), B (out, r).

As separate nodes the gradient of x is made twice, each as wide as x, and added in a third pass. Here the LoRA's part is
added while it is computed, so that gradient is summed in another order: values and gradients of A and B are those of
separate nodes to the bit, that of x within rounding. A CPU keeps separate nodes: there memory traffic decides less, and
runs resume to the bit across versions.
"""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ..model.autocast import without_autocast
from ..model.held import HeldValues
from ..model.unread import no_values
from ..precision import QuantizedLinear

_SEPARATE = frozenset({"cpu"})
"""types of devices that keep separate nodes"""


def fits(base: nn.Module, x: Tensor) -> bool:
    """Returns whether `base` is a frozen linear, plain or quantized, that computes in x's dtype on a device for it."""
    if x.device.type in _SEPARATE or torch.compiler.is_compiling():  # a compiler fuses separate nodes itself
        return False
    if "forward" in vars(base):  # a frozen LoRA acts there, and has a gradient of its own
        return False
    plain = type(base) is nn.Linear and base.weight.dtype == x.dtype and not base.weight.requires_grad
    return plain or type(base) is QuantizedLinear


def with_lora(
    base: nn.Linear, x: Tensor, pair: tuple[Tensor, Tensor], scale: float, held: HeldValues, *, read: bool
) -> Tensor:
    """Returns the adapted product (..., out) of x (..., in); not `read`, what the graph takes for it."""
    return cast(Tensor, _WithLora.apply(x, base, held, *pair, scale, read))


class _WithLora(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, base: nn.Linear, held: HeldValues, down: Tensor, up: Tensor, scale: float, read: bool
    ) -> Tensor:
        hidden = x.flatten(0, -2) @ held.of("down", partial(down.to, x.dtype)).t()
        ctx.save_for_backward(x, hidden, down, up)
        ctx.base, ctx.held, ctx.scale = base, held, scale
        if not read:
            return no_values(x, len(up))
        result = base(x)
        # Out of place: a checkpoint policy may keep the product of the base.
        rows = torch.addmm(result.flatten(0, -2), hidden, held.of("up", partial(up.to, x.dtype)).t(), alpha=scale)
        return rows.view(result.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (gradient,) = gradients
        of_x, of_down, of_up = without_autocast(gradient.device.type, _gradients, ctx, gradient)
        return of_x, None, None, of_down, of_up, None, None


def _gradients(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
    """Returns those of x, A and B for the gradient (..., out) of the output."""
    x, hidden, down, up = ctx.saved_tensors
    rows = gradient.flatten(0, -2)
    of_up = _times(rows.t() @ hidden, ctx.scale)
    of_hidden = _times(rows @ ctx.held.of("up", partial(up.to, x.dtype)), ctx.scale)
    of_down = of_hidden.t() @ x.flatten(0, -2)
    of_x = None
    if ctx.needs_input_grad[0]:
        base, narrow = ctx.base, ctx.held.of("down", partial(down.to, x.dtype))
        of_x = base.input_gradient(rows) if isinstance(base, QuantizedLinear) else rows @ base.weight
        of_x = of_x.addmm_(of_hidden, narrow).view(x.shape)
    return of_x, of_down.to(down.dtype), of_up.to(up.dtype)


def _times(values: Tensor, scale: float) -> Tensor:
    return values if scale == 1 else values * scale
