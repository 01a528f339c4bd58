"""Frozen linears of one input and their LoRAs as one autograd node: y = base(x) + scale * (x @ A.T) @ B.T, A (r, in),
B (out, r).

With separate nodes, base and LoRA each write a gradient of x, and a third pass over memory adds them. Here the LoRA's
gradient is added while it is computed. Outputs and the gradients of A and B equal the separate nodes' bit for bit; the
gradient of x is summed in another order, so it differs by rounding. A CPU keeps separate nodes: it gains little from
less memory traffic, and its runs resume bit for bit across versions.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from ..kernels import HeldValues, applied, made_together, no_values, without_autocast
from ..model.names import each_named, listened_to
from ..precision import QuantizedLinear, rounded_once

_SEPARATE = frozenset({"cpu"})
"""device types on which base and LoRA stay separate autograd nodes"""


def fits(base: nn.Module, device: torch.device, dtype: torch.dtype) -> bool:
    """Returns whether `base` is a frozen linear, plain or quantized, that computes in `dtype`, on a GPU."""
    if device.type in _SEPARATE or torch.compiler.is_compiling():  # torch.compile fuses separate nodes itself
        return False
    if "forward" in vars(base):  # A frozen LoRA replaces the forward of this linear, and has its own gradient of x.
        return False
    if type(base) is not nn.Linear:
        return type(base) is QuantizedLinear
    weight = base.weight
    return weight.dtype == dtype and not weight.requires_grad


class OneLora(NamedTuple):
    """A linear with its LoRA."""

    base: nn.Linear
    pair: tuple[Tensor, ...]
    """(r, in) and (out, r)"""
    scale: float
    held: HeldValues


def with_loras(
    linears: Sequence[OneLora], x: Tensor, names: Sequence[str] = (), *, read: bool = True
) -> tuple[Tensor, ...]:
    """Returns the adapted products (..., out) of one input x (..., in).

    `names`: activation names. `read`: False for undefined values with the right graph. The A matrices of several
    linears are multiplied as one matrix.
    """
    pairs = [matrix for one in linears for matrix in one.pair]
    return cast("tuple[Tensor, ...]", applied(_WithLoras, x, linears, names, read, *pairs))


class _WithLoras(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, linears: Sequence[OneLora], names: Sequence[str], read: bool, *pairs: Tensor
    ) -> tuple[Tensor, ...]:
        downs, ups = pairs[::2], pairs[1::2]
        narrow = [_in(one, "down", down, x.dtype) for one, down in zip(linears, downs, strict=True)]
        hidden = x.flatten(0, -2) @ stacked(narrow).t()
        ctx.save_for_backward(x, hidden, *pairs)
        ctx.linears = linears
        if not read:
            return tuple([no_values(x, up.shape[0]) for up in ups])
        if len(linears) == 1 and not names:
            return (_product(x, linears[0], hidden, ups[0]),)
        parts = _split(hidden, downs, 1)
        products = [partial(_product, x, *given) for given in zip(linears, parts, ups, strict=True)]
        with rounded_once(x), made_together([one.base for one in linears], x.dtype):
            return each_named(products, names)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        of_x, *of_pairs = without_autocast(gradients[0].device.type, _gradients, ctx, gradients)
        return of_x, None, None, None, *of_pairs


def _product(x: Tensor, linear: OneLora, hidden: Tensor, up: Tensor) -> Tensor:
    base = linear.base
    hooked = bool(base._forward_hooks or base._forward_pre_hooks)  # pyright: ignore[reportPrivateUsage]
    # The function is called directly, because a module's call and attribute look-ups cost more than the dispatcher.
    if type(base) is nn.Linear and not hooked:
        own = base._parameters  # pyright: ignore[reportPrivateUsage]
        result = functional.linear(x, cast(Tensor, own["weight"]), own["bias"])
    else:
        result = base(x)
    narrow, rows = _in(linear, "up", up, x.dtype).t(), result.flatten(0, -2)
    if hooked or listened_to():  # a hook or a checkpoint policy may keep the product of the base
        return torch.addmm(rows, hidden, narrow, alpha=linear.scale).view(result.shape)
    rows.addmm_(hidden, narrow, alpha=linear.scale)  # an out-of-place addition would copy the result first on a GPU
    return result


def _in(linear: OneLora, name: str, matrix: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns a matrix of `linear` in `dtype`."""
    return matrix if matrix.dtype == dtype else linear.held.of(name, partial(matrix.to, dtype))


def _gradients(ctx: Any, gradients: Sequence[Tensor]) -> list[Tensor | None]:
    """Returns the gradients of x, and of A and B of each linear, from the gradients (..., out) of the outputs."""
    x, hidden, *pairs = ctx.saved_tensors
    linears: Sequence[OneLora] = ctx.linears
    downs, ups, outputs = pairs[::2], pairs[1::2], [gradient.flatten(0, -2) for gradient in gradients]
    of_hidden = torch.empty_like(hidden)
    of_ups: list[Tensor] = []
    parts = zip(linears, ups, outputs, _split(hidden, downs, 1), _split(of_hidden, downs, 1), strict=True)
    for one, up, rows, part, of_part in parts:
        of_up = _times(rows.t() @ part, one.scale)
        of_ups.append(of_up if of_up.dtype == up.dtype else of_up.to(up.dtype))
        torch.mm(rows, _in(one, "up", up, x.dtype), out=of_part)
        _times(of_part, one.scale, out=of_part)
    of_downs = _split(of_hidden.t() @ x.flatten(0, -2), downs, 0)
    of_x = None
    if ctx.needs_input_grad[0]:
        with made_together([one.base for one in linears], x.dtype):
            for one, rows in zip(linears, outputs, strict=True):
                of_x = _add_input_gradient(of_x, one.base, rows)
        narrow = [_in(one, "down", down, x.dtype) for one, down in zip(linears, downs, strict=True)]
        assert of_x is not None
        of_x = of_x.addmm_(of_hidden, stacked(narrow)).view(x.shape)
    found: list[Tensor | None] = [of_x]
    for down, of_down, of_up in zip(downs, of_downs, of_ups, strict=True):
        found += [of_down if of_down.dtype == down.dtype else of_down.to(down.dtype), of_up]
    return found


def _add_input_gradient(of_x: Tensor | None, base: nn.Linear, rows: Tensor) -> Tensor:
    """Returns `of_x` (n, in), which it may overwrite, plus the gradient of the input of `base` for `rows` (n, out)."""
    if isinstance(base, QuantizedLinear):
        return base.input_gradient(rows, of_x)
    return rows @ base.weight if of_x is None else of_x.addmm_(rows, base.weight)


def stacked(matrices: Sequence[Tensor]) -> Tensor:
    """Returns matrices (r, in) of one dtype, stacked along dimension 0: a view if they are adjacent in memory."""
    first = matrices[0]
    if len(matrices) == 1:
        return first
    ends = [one.storage_offset() + one.numel() for one in matrices]
    together = {one.untyped_storage()._cdata for one in matrices} == {first.untyped_storage()._cdata}  # pyright: ignore[reportPrivateUsage]
    follow = [one.storage_offset() for one in matrices[1:]] == ends[:-1]
    if not (together and follow and all(one.is_contiguous() for one in matrices)):
        return torch.cat(list(matrices))
    return first.as_strided((sum(map(len, matrices)), first.shape[1]), first.stride())


def _split(values: Tensor, downs: Sequence[Tensor], axis: int) -> Sequence[Tensor]:
    """Returns the parts of `values`, along `axis`, that belong to each matrix A."""
    return (values,) if len(downs) == 1 else values.split([down.shape[0] for down in downs], axis)


def _times(values: Tensor, scale: float, out: Tensor | None = None) -> Tensor:
    return values if scale == 1 else torch.mul(values, scale, out=out)
