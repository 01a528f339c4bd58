"""The elementwise steps of a Wan block, with explicit casts. B batch, N tokens, D width, T time rows."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from .fused import fused_norm, norms_fuse
from .held import HeldValues
from .recompute import applied, remade, without_autocast


def cast_linear(layer: nn.Module, x: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns a frozen linear of x (..., in), computed in `dtype` for every storage dtype of its weight."""
    assert isinstance(layer, nn.Linear)
    if type(layer) is not nn.Linear:  # quantized linears compute in the dtype of their input
        return layer(x.to(dtype))
    return functional.linear(x.to(dtype), layer.weight.to(dtype), layer.bias.to(dtype))


def layer_norm(x: Tensor, norm: nn.LayerNorm, dtype: torch.dtype, held: HeldValues | None = None) -> Tensor:
    """LayerNorm of x (..., D), computed and returned in `dtype`. `held`: holds the converted weight and bias."""

    def wide(name: str, p: Tensor) -> Tensor:
        if held is None or p.dtype == dtype or p.requires_grad:
            return p.to(dtype)
        return held.of(name, partial(p.to, dtype))

    weights = wide("weight", norm.weight), wide("bias", norm.bias)
    return functional.layer_norm(x.to(dtype), norm.normalized_shape, *weights, norm.eps)


def normed_with(
    x: Tensor,
    norm: nn.LayerNorm,
    dtype: torch.dtype,
    out: torch.dtype,
    held: HeldValues | None = None,
    *,
    overwrites: bool = False,
) -> tuple[Tensor, Tensor]:
    """Returns x (B, N, D) for all its other uses, and `layer_norm` of it in `out`.

    `overwrites`: the gradient of x may overwrite x.
    """
    scale, shift = norm.weight.view(1, 1, -1), norm.bias.view(1, 1, -1)
    if norms_fuse(x, scale, shift, dtype):
        return fused_norm(x, scale, shift, norm.eps, out, one_more=False, update=None, overwrites=overwrites)
    return x, layer_norm(x, norm, dtype, held).to(out)


def modulated_with(
    x: Tensor,
    update: Tensor | None,
    shift: Tensor,
    scale: Tensor,
    eps: float,
    dtype: torch.dtype,
    out: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Returns x (B, N, D) plus `update` for all its other uses, and `shift_and_scale` of it in `out`."""
    if norms_fuse(x, scale, shift, dtype):
        return fused_norm(x, scale, shift, eps, out, one_more=True, update=update)
    x = x if update is None else added(x, update)
    return x, shift_and_scale(x, shift, scale, eps, dtype, out)


def shift_and_scale(
    x: Tensor, shift: Tensor, scale: Tensor, eps: float, dtype: torch.dtype, out: torch.dtype | None = None
) -> Tensor:
    """LayerNorm(x) * (1 + scale) + shift in `dtype`, rounded to `out`; x (B, N, D), shift and scale (B, T, D), N a
    multiple of T."""
    shift, scale = shift.to(dtype).unsqueeze(2), 1 + scale.to(dtype).unsqueeze(2)
    if not (shift.requires_grad or scale.requires_grad or torch.compiler.is_compiling()):
        return cast(Tensor, applied(_ShiftAndScale, x, shift, scale, eps, out or dtype))
    normed = functional.layer_norm(x.to(dtype), (x.shape[-1],), eps=eps)
    return torch.addcmul(shift, _by_rows(normed, scale), scale).flatten(1, 2).to(out or dtype)


class _ShiftAndScale(torch.autograd.Function):
    """`shift_and_scale` with frozen shift and scale (B, T, 1, D), without separate kernels for casts."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, shift: Tensor, scale: Tensor, eps: float, out: torch.dtype) -> Tensor:
        wide = x.to(scale.dtype)
        normed, mean, inverse = torch.native_layer_norm(wide, (x.shape[-1],), None, None, eps)
        ctx.save_for_backward(wide, mean, inverse, scale)
        ctx.dtype = x.dtype
        found = normed if out == scale.dtype else torch.empty_like(normed, dtype=out)
        torch.addcmul(shift, _by_rows(normed, scale), scale, out=_by_rows(found, scale))
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return without_autocast(gradients[0].device.type, _shift_and_scale_backward, ctx, gradients[0]), *(None,) * 4


def _shift_and_scale_backward(ctx: Any, gradient: Tensor) -> Tensor:
    wide, mean, inverse, scale = ctx.saved_tensors
    of_normed = torch.mul(_by_rows(gradient, scale), scale).flatten(1, 2).to(wide.dtype)
    found = torch.ops.aten.native_layer_norm_backward(
        of_normed, wide, (wide.shape[-1],), mean, inverse, None, None, (True, False, False)
    )
    return found[0].to(ctx.dtype)


def _by_rows(x: Tensor, rows: Tensor) -> Tensor:
    """(B, N, D) as (B, T, N / T, D), where `rows` are (B, T, 1, D)."""
    return x.unflatten(1, (rows.shape[1], -1))


def added(x: Tensor, update: Tensor) -> Tensor:
    """x + update in x's dtype, without a separate kernel for a cast if x's dtype is the wider one."""
    return x + (update if torch.promote_types(x.dtype, update.dtype) == x.dtype else update.to(x.dtype))


def gated_add(x: Tensor, update: Tensor, gate: Tensor, *, read: bool = True, into: Tensor | None = None) -> Tensor:
    """x + update * gate in the wider of x's and gate's dtype, stored in x's; gate (B, T, D).

    `read`: False for undefined values with the right graph, where only the backward pass is needed and the gate is
    frozen. `into`: a tensor like x for the result, used in passes without gradients.
    """
    wide = torch.promote_types(x.dtype, gate.dtype)
    if into is not None and not (torch.is_grad_enabled() or torch.compiler.is_compiling()):
        return _gated_add(x, update, gate, wide, into)
    if not (gate.requires_grad or torch.compiler.is_compiling()):
        return cast(Tensor, applied(_GatedAdd, x, update, gate, wide, read))
    if gate.shape[1] == 1:
        return torch.addcmul(x.to(wide), update.to(wide), gate.to(wide)).to(x.dtype)
    rows = update.to(wide).unflatten(1, (gate.shape[1], -1)) * gate.to(wide).unsqueeze(2)
    return (x.to(wide) + rows.flatten(1, 2)).to(x.dtype)


class _GatedAdd(torch.autograd.Function):
    """`gated_add` with a frozen gate (B, T, D): keeps only the gate, and casts inside its kernels."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, update: Tensor, gate: Tensor, wide: torch.dtype, read: bool) -> Tensor:
        ctx.save_for_backward(gate)
        ctx.dtype = update.dtype
        if not read:
            return torch.empty_like(x)
        return _gated_add(x, update, gate, wide, torch.empty_like(x))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (gradient,), (gate,) = gradients, ctx.saved_tensors
        of_update = torch.empty_like(gradient, dtype=ctx.dtype)
        rows = gate.unsqueeze(2)
        torch.mul(_by_rows(gradient, rows), rows, out=_by_rows(of_update, rows))
        return gradient, of_update, None, None, None


def _gated_add(x: Tensor, update: Tensor, gate: Tensor, wide: torch.dtype, out: Tensor) -> Tensor:
    update = update if torch.promote_types(update.dtype, wide) == wide else update.to(wide)
    if gate.shape[1] == 1:
        return torch.addcmul(x, update, gate, out=out)
    rows = gate.unsqueeze(2)
    return torch.add(x, torch.mul(_by_rows(update, rows), rows).flatten(1, 2), out=out)


_HAS_FUSED_RMS_NORM = hasattr(torch, "_fused_rms_norm")
"""whether torch has a CUDA kernel of RMS norm (2.9 and newer) and not only a composite of many kernels"""


def sums_within(x: Tensor, weight: Tensor, dtype: torch.dtype) -> bool:
    """Returns whether torch's kernel, which sums in float32 and rounds once, computes `rms_norm` of x in `dtype`."""
    return dtype == torch.float32 and x.dtype.itemsize == 2 and weight.dtype == x.dtype and not weight.requires_grad


def rms_norm(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis, computed in `dtype`, returned in x's; weight (D,).

    Sums are at least float32 for every `dtype`. With a `dtype` of 16 bits, the normalized value is rounded before it is
    multiplied by the weight, as in diffusers; a wider one rounds once.
    """
    if (x.is_cuda and _HAS_FUSED_RMS_NORM) or torch.compiler.is_compiling():
        if sums_within(x, weight, dtype):
            return functional.rms_norm(x, weight.shape, weight, eps)
        wide = x.to(dtype)
        with remade(wide, partial(x.to, dtype)):
            if dtype.itemsize == 2:
                return (functional.rms_norm(wide, weight.shape, None, eps) * weight.to(dtype)).to(x.dtype)
            return functional.rms_norm(wide, weight.shape, weight.to(dtype), eps).to(x.dtype)
    return cast(Tensor, applied(_RMSNorm, x, weight, eps, dtype))


class _RMSNorm(torch.autograd.Function):
    """RMS norm if torch has only a composite, with a third of its kernels; keeps its input and a value a row."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
        wide = x.to(dtype)
        # Out of place, because a checkpoint policy may keep any of these results. The sum of squares is at least
        # float32, because it overflows in float16.
        exact = torch.promote_types(dtype, torch.float32)
        length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True, dtype=exact)
        inverse = (length.square() / x.shape[-1] + eps).rsqrt()
        ctx.save_for_backward(x, weight, inverse)
        ctx.dtype = dtype
        normed = wide * inverse
        if dtype.itemsize == 2:
            return (normed.to(dtype) * weight.to(dtype)).to(x.dtype)
        return (normed * weight.to(inverse.dtype)).to(dtype).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *gradients: Tensor
    ) -> tuple[Tensor, Tensor | None, None, None]:
        return without_autocast(gradients[0].device.type, _rms_norm_backward, ctx, gradients[0])


def _rms_norm_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
    x, weight, inverse = ctx.saved_tensors
    wide = x.to(ctx.dtype).to(inverse.dtype)
    gradient = gradient.to(wide.dtype)
    of_weight = None
    if ctx.needs_input_grad[1]:
        of_weight = (gradient * wide * inverse).flatten(0, -2).sum(0).to(weight.dtype)
    scaled = gradient * weight.to(wide.dtype)
    along = (scaled.unsqueeze(-2) @ wide.unsqueeze(-1)).squeeze(-1)
    scaled.mul_(inverse).addcmul_(wide, along * inverse**3, value=-1 / wide.shape[-1])
    return scaled.to(x.dtype), of_weight, None, None
