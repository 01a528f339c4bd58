"""The elementwise steps of a block as fused functions: LayerNorm with its modulation, RMS norm with its rotation.

They compute in float32 like modulate.py and rope.py, but do not round intermediate values, so results differ by
rounding. Shapes: R runs of M tokens with one row of the modulation for each run (no dimension R for a single run), D
width, T time rows.
"""

from __future__ import annotations

from typing import Any, TypeAlias, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .fusing import Fused, static_width
from .recompute import applied

_Two: TypeAlias = tuple[Tensor, Tensor]
_Three: TypeAlias = tuple[Tensor, Tensor, Tensor]


def _norm(x: Tensor, scale: Tensor, shift: Tensor, eps: float, one_more: bool, out: torch.dtype) -> _Three:
    """x (R, M, D), scale and shift (R, 1, D) -> LayerNorm(x) * scale + shift in `out`; mean and 1 / standard deviation,
    (R, M, 1) float32.

    `one_more`: multiply by 1 + scale, as a modulation does.
    """
    static_width(x)
    wide = x.to(torch.float32)
    variance, mean = torch.var_mean(wide, -1, correction=0, keepdim=True)
    inverse = (variance + float(eps)).rsqrt()
    normed = (wide - mean) * inverse * _scale(scale, one_more) + shift.to(torch.float32)
    return normed.to(out), mean, inverse


def _norm_back(
    of_normed: Tensor, of_x: Tensor | None, x: Tensor, mean: Tensor, inverse: Tensor, scale: Tensor, one_more: bool
) -> Tensor:
    """Returns the gradient of x: through the norm, from `of_normed`, plus `of_x` from other uses of x."""
    static_width(x)
    scaled = of_normed.to(torch.float32) * _scale(scale, one_more)
    normed = (x.to(torch.float32) - mean) * inverse
    of_norm = scaled - scaled.mean(-1, keepdim=True) - normed * (scaled * normed).mean(-1, keepdim=True)
    found = of_norm * inverse
    return (found if of_x is None else found + of_x.to(torch.float32)).to(x.dtype)


def _norm_back_over(
    x: Tensor, of_normed: Tensor, of_x: Tensor | None, mean: Tensor, inverse: Tensor, scale: Tensor, one_more: bool
) -> None:
    x.copy_(_norm_back(of_normed, of_x, x, mean, inverse, scale, one_more))


def _sum_norm(
    x: Tensor, update: Tensor, scale: Tensor, shift: Tensor, eps: float, one_more: bool, out: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns x + update (R, M, D each) in x's dtype, and `_norm` of it."""
    both = (x.to(torch.float32) + update.to(torch.float32)).to(x.dtype)
    return both, *_norm(both, scale, shift, eps, one_more, out)


def _sum_norm_back(
    of_normed: Tensor,
    of_sum: Tensor | None,
    both: Tensor,
    mean: Tensor,
    inverse: Tensor,
    scale: Tensor,
    one_more: bool,
    narrow: torch.dtype,
) -> _Two:
    """Returns the gradient of x, and the equal gradient of the update in dtype `narrow`."""
    found = _norm_back(of_normed, of_sum, both, mean, inverse, scale, one_more)
    return found, found.to(narrow)


def _scale(scale: Tensor, one_more: bool) -> Tensor:
    return scale.to(torch.float32) + 1 if one_more else scale.to(torch.float32)


def _rms_rotate(x: Tensor, weight: Tensor, eps: float, cos: Tensor, sin: Tensor) -> _Two:
    """x (B, N, D), weight (D,), tables (N, 1, head_dim / 2) -> RMS norm of x, rotated, in its dtype; 1 / root (B, N, 1)
    float32."""
    static_width(x)
    wide = x.to(torch.float32)
    inverse = (wide.square().mean(-1, keepdim=True) + float(eps)).rsqrt()
    return _turned(wide * inverse * weight.to(torch.float32), cos, sin).to(x.dtype), inverse


def _rms_rotate_back(gradient: Tensor, x: Tensor, weight: Tensor, inverse: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Returns the gradient of x; shapes as in `_rms_rotate`."""
    static_width(x)
    wide = x.to(torch.float32)
    scaled = _turned(gradient.to(torch.float32), cos, -sin) * weight.to(torch.float32)
    along = (scaled * wide).mean(-1, keepdim=True)
    return ((scaled - wide * (along * inverse.square())) * inverse).to(x.dtype)


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x (B, N, D) float32, with each pair of adjacent channels rotated by its angle."""
    static_width(cos)
    even, odd = x.unflatten(-1, (-1, cos.shape[-1], 2)).unbind(-1)
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(2)


def _per_row(x: Tensor) -> Tensor:
    return x.new_empty((*x.shape[:-1], 1), dtype=torch.float32)


NORM = Fused(
    "norm(Tensor x, Tensor scale, Tensor shift, float eps, bool one_more, ScalarType out) -> (Tensor, Tensor, Tensor)",
    _norm,
    lambda x, scale, shift, eps, one_more, out: (torch.empty_like(x, dtype=out), _per_row(x), _per_row(x)),
)
NORM_BACK = Fused(
    "norm_back(Tensor of_normed, Tensor? of_x, Tensor x, Tensor mean, Tensor inverse, Tensor scale, bool one_more)"
    " -> Tensor",
    _norm_back,
    lambda of_normed, of_x, x, *rest: torch.empty_like(x),
)
NORM_BACK_OVER = Fused(
    "norm_back_over(Tensor(a!) x, Tensor of_normed, Tensor? of_x, Tensor mean, Tensor inverse, Tensor scale,"
    " bool one_more) -> ()",
    _norm_back_over,
    lambda *inputs: None,
)
SUM_NORM = Fused(
    "sum_norm(Tensor x, Tensor update, Tensor scale, Tensor shift, float eps, bool one_more, ScalarType out)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
    _sum_norm,
    lambda x, update, scale, shift, eps, one_more, out: (
        torch.empty_like(x),
        torch.empty_like(x, dtype=out),
        _per_row(x),
        _per_row(x),
    ),
)
SUM_NORM_BACK = Fused(
    "sum_norm_back(Tensor of_normed, Tensor? of_sum, Tensor both, Tensor mean, Tensor inverse, Tensor scale,"
    " bool one_more, ScalarType narrow) -> (Tensor, Tensor)",
    _sum_norm_back,
    lambda of_normed, of_sum, both, mean, inverse, scale, one_more, narrow: (
        torch.empty_like(both),
        torch.empty_like(both, dtype=narrow),
    ),
)
RMS_ROTATE = Fused(
    "rms_rotate(Tensor x, Tensor weight, float eps, Tensor cos, Tensor sin) -> (Tensor, Tensor)",
    _rms_rotate,
    lambda x, *rest: (torch.empty_like(x), _per_row(x)),
)
RMS_ROTATE_BACK = Fused(
    "rms_rotate_back(Tensor gradient, Tensor x, Tensor weight, Tensor inverse, Tensor cos, Tensor sin) -> Tensor",
    _rms_rotate_back,
    lambda gradient, x, *rest: torch.empty_like(x),
)
_NORMS = (NORM, NORM_BACK, NORM_BACK_OVER, SUM_NORM, SUM_NORM_BACK)


def norms_fuse(x: Tensor, scale: Tensor, shift: Tensor, dtype: torch.dtype) -> bool:
    """Returns whether the LayerNorm of `x` in `dtype` runs fused: with frozen scale and shift, forward and backward."""
    if dtype != torch.float32 or scale.requires_grad or shift.requires_grad:
        return False
    return Fused.all_on(_NORMS, x)


def fused_norm(
    x: Tensor,
    scale: Tensor,
    shift: Tensor,
    eps: float,
    out: torch.dtype,
    *,
    one_more: bool,
    update: Tensor | None,
    overwrites: bool = False,
) -> tuple[Tensor, Tensor]:
    """Returns x (B, N, D), or x + update, and LayerNorm of it times scale plus shift (B, T, D each) in `out`.

    Other uses of x must take the first result, so that the gradients of both are summed in one pass. `one_more`:
    multiply by 1 + scale. `overwrites`: without an update, the gradient of x may overwrite x.
    """
    return cast(_Two, applied(_FusedNorm, x, update, scale, shift, eps, one_more, out, overwrites))


class _FusedNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        update: Tensor | None,
        scale: Tensor,
        shift: Tensor,
        eps: float,
        one_more: bool,
        out: torch.dtype,
        overwrites: bool,
    ) -> _Two:
        runs = scale.shape[0] * scale.shape[1]
        # No dimension of size 1: its stride differs between chunks, and each stride would compile another graph.
        shape = (runs, -1, x.shape[-1]) if runs > 1 else (-1, x.shape[-1])
        one = (runs, 1, x.shape[-1]) if runs > 1 else (1, x.shape[-1])
        scale, shift = scale.reshape(one), shift.reshape(one)
        if update is None:
            both = x.reshape(shape)
            normed, mean, inverse = NORM(both, scale, shift, eps, one_more, out)
            whole = x
        else:
            both, normed, mean, inverse = SUM_NORM(
                x.reshape(shape), update.reshape(shape), scale, shift, eps, one_more, out
            )
            whole = both.view(x.shape)
            ctx.narrow = update.dtype
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(both, mean, inverse, scale)
        ctx.one_more, ctx.adds, ctx.overwrites = one_more, update is not None, overwrites
        return whole, normed.view(x.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        of_whole, of_normed = gradients
        both, *others = ctx.saved_tensors
        nothing = (None,) * 6
        if of_normed is None:
            of_update = None if of_whole is None or not ctx.adds else of_whole.to(ctx.narrow)
            return of_whole, of_update, *nothing
        of_both = None if of_whole is None else of_whole.reshape(both.shape)
        given = (of_normed.reshape(both.shape), of_both, both, *others, ctx.one_more)
        if ctx.overwrites:
            NORM_BACK_OVER(both, *given[:2], *given[3:])
            return both.view(of_normed.shape), None, *nothing
        if not ctx.adds:
            return NORM_BACK(*given).view(of_normed.shape), None, *nothing
        of_x, of_update = SUM_NORM_BACK(*given, ctx.narrow)
        return of_x.view(of_normed.shape), of_update.view(of_normed.shape), *nothing


def rotation_fuses(x: Tensor, weight: Tensor, cos: Tensor, dtype: torch.dtype) -> bool:
    """Returns whether RMS norm in `dtype` and rotation of `x` run fused."""
    if dtype != torch.float32 or cos.dtype != torch.float32 or weight.requires_grad:
        return False
    return Fused.all_on((RMS_ROTATE, RMS_ROTATE_BACK), x)


def fused_rms_rotate(x: Tensor, weight: Tensor, eps: float, cos: Tensor, sin: Tensor) -> Tensor:
    """Returns x (B, N, D), RMS-normed and rotated, (B, N, D) in its dtype; tables as in rope.py."""
    return cast(Tensor, applied(_FusedRmsRotate, x, weight, eps, cos, sin))


class _FusedRmsRotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float, cos: Tensor, sin: Tensor) -> Tensor:
        found, inverse = RMS_ROTATE(x, weight, eps, cos, sin)
        ctx.save_for_backward(x, weight, inverse, cos, sin)
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return RMS_ROTATE_BACK(gradients[0].contiguous(), *ctx.saved_tensors), None, None, None, None
