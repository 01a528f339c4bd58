"""The distinct rows of a text, the last of which stands for itself and for all that are missing of Wan's 512.

Wan pads every text with zero rows, and attends to them. Rows that are equal stay equal through every layer that looks
at one row alone, so they are computed once, and repeated where attention reads them (ADR 29).
Their gradients are summed in float32; the sum is handed back in two parts of the dtype at hand, to two equal rows.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..kernels import applied

TEXT_LENGTH = 512
"""umT5 tokens Wan was trained with (Wan configs: text_len); zero rows pad a text to them and take part in attention"""
TEXT_STEP = 16
"""a text has a multiple of these rows: few sizes, each of which kernels take well"""


def lengthened(rows: Tensor, count: int) -> Tensor:
    """Returns rows (B, L, D) with the last one again until there are `count`, or as they are where there are."""
    missing = count - rows.shape[1]
    if missing <= 0:
        return rows
    return torch.cat([rows, rows[:, -1:].expand(-1, missing, -1)], dim=1)


def with_last_twice(rows: Tensor, count: int) -> Tensor:
    """Returns rows (B, L, D) with the last one twice, as `repeated` takes them; as they are where they are `count`."""
    return rows if rows.shape[1] >= count else torch.cat([rows, rows[:, -1:]], dim=1)


def repeated(rows: Tensor, count: int) -> Tensor:
    """Does what `lengthened` does to rows whose last two are equal; their gradients are rounded as those of `count`."""
    return rows if rows.shape[1] >= count else cast(Tensor, applied(_Repeated, rows, count))


class _Repeated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, count: int) -> Tensor:
        ctx.given = rows.shape[1]
        return lengthened(rows, count)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (gradient,) = gradients
        found = gradient[:, : ctx.given].clone(memory_format=torch.contiguous_format)
        exact = torch.promote_types(gradient.dtype, torch.float32)
        equal = gradient[:, ctx.given - 2 :]
        # In float32 in the order of `lengthened`, whose bits runs begun with it resume to; else in one kernel.
        total = equal[:, 0] + equal[:, 1:].sum(1) if exact == gradient.dtype else equal.sum(1, dtype=exact)
        # What rounding takes from the sum is the gradient of the other row.
        found[:, -2] = total
        torch.sub(total, found[:, -2], out=found[:, -1])
        return found, None
