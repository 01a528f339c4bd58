"""Text rows without repetition: Wan pads every text to 512 rows with zeros; here one zero row stands for all of them.

Wan attends to the padding. Equal rows stay equal through layers that compute each row independently, so these layers
run once for all of them, and the row is repeated before attention (ADR 29).
Gradients of the repeated rows are summed in float32. Two equal rows receive the sum: one its rounded value, the other
the rounding error.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..kernels import applied

TEXT_LENGTH = 512
"""number of text rows that Wan attends to, umT5 tokens and zero padding (Wan configs: text_len)"""
TEXT_STEP = 16
"""a text without repetition is padded to a multiple of this number of rows: few shapes, and aligned ones"""


def lengthened(rows: Tensor, count: int) -> Tensor:
    """Repeats the last one of rows (B, L, D) until there are `count`; unchanged if L is `count` or more."""
    missing = count - rows.shape[1]
    if missing <= 0:
        return rows
    return torch.cat([rows, rows[:, -1:].expand(-1, missing, -1)], dim=1)


def with_last_twice(rows: Tensor, count: int) -> Tensor:
    """Appends the last one of rows (B, L, D) once more, as `repeated` needs; unchanged if L is `count` or more."""
    return rows if rows.shape[1] >= count else torch.cat([rows, rows[:, -1:]], dim=1)


def repeated(rows: Tensor, count: int) -> Tensor:
    """Does the same as `lengthened`, for rows whose last two are equal; sums gradients as the module docstring says."""
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
        # In float32, the order of the sum is that of autograd for `lengthened`, so that old runs resume bitwise. Other
        # dtypes use one kernel.
        total = equal[:, 0] + equal[:, 1:].sum(1) if exact == gradient.dtype else equal.sum(1, dtype=exact)
        # The last row gets the rounding error of the row before it.
        found[:, -2] = total
        torch.sub(total, found[:, -2], out=found[:, -1])
        return found, None
