"""Products of activations with an 8-bit weight in 8 bits: rows rounded as they come, both ways of a training step.

Rounding has no gradient; here it counts as the identity. An input gradient is a product of its own, with the same
weight, and is rounded like the activations are. A few rows at a time, so that nothing wide is held. Where the rows of
a weight were rotated, activations are rotated before they are rounded, and an input gradient back after the product.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ..abilities import abilities_of
from ..checkpoint import rotated, value_to_a_byte
from ..errors import ConfigError
from ..words import first_line

_VALUES_AT_ONCE = 1 << 24
_FEWEST_ROWS = 32
"""torch's int8 product on CUDA wants more than 16"""


def multiplies(weight: Tensor, scale: Tensor | None, dtype: torch.dtype, layout: str = "") -> bool:
    """Returns whether a packed weight (out, in) can be multiplied in `dtype`: it is of it, scaled whole or by row."""
    scales = 1 if scale is None else scale.numel()
    return weight.dtype == dtype and value_to_a_byte(layout) and scales in (1, weight.shape[0])


def product(x: Tensor, weight: Tensor, scale: Tensor | None, bias: Tensor | None, layout: str = "") -> Tensor:
    """x (..., in) @ (weight * scale).T + bias in x's dtype; weight (out, in) fp8 or int8, scale float32.

    `layout`: how the rows of the weight were rotated, as in `checkpoint.dequantise`; empty where they were not.
    """
    rows = x.reshape(-1, x.shape[-1])
    whole = x.new_empty(len(rows), weight.shape[0])
    per_column = torch.ones((), device=x.device) if scale is None else scale.flatten()
    for part in _parts(rows, weight):
        values, of_row = _in_8_bits(rotated(rows[part].to(torch.float32, copy=True), layout), weight.dtype)
        found = _multiplied(values, weight.t()).mul_(of_row).mul_(per_column)
        whole[part] = found if bias is None else found.add_(bias)
    return whole.view(*x.shape[:-1], -1)


def input_gradient(gradient: Tensor, weight: Tensor, scale: Tensor | None, layout: str = "") -> Tensor:
    """gradient (..., out) @ (weight * scale) in its dtype.

    The scale of a weight's row belongs to the sum here, so it is multiplied into the gradient before that is rounded.
    """
    rows = gradient.reshape(-1, gradient.shape[-1])
    whole = gradient.new_empty(len(rows), weight.shape[1])
    columns = weight.t().contiguous().t()  # as 8-bit products on CUDA read their second factor
    for part in _parts(rows, weight):
        scaled = rows[part].to(torch.float32, copy=True)
        values, of_row = _in_8_bits(scaled if scale is None else scaled.mul_(scale.flatten()), weight.dtype)
        whole[part] = rotated(_multiplied(values, columns).mul_(of_row), layout)
    return whole.view(*gradient.shape[:-1], -1)


def matmul_bytes(values: int) -> int:
    """The most memory a product takes beside a weight of so many values, what is as long as the tokens not counted."""
    return values + 13 * _VALUES_AT_ONCE


def check_matmul(dtype: torch.dtype, device: torch.device) -> None:
    """Raises ConfigError where there is no such product on `device`: what its age allows is tried, there and back."""
    name, card = "int8" if dtype == torch.int8 else "fp8", abilities_of(device)
    if not (card.int8_products if dtype == torch.int8 else card.fp8_products):
        newer = "7.0" if dtype == torch.int8 else "8.9 (RTX 40 and newer)"
        raise ConfigError(
            f'matmul "{name}" cannot run on {device}: it takes compute capability {newer}, and this is {card.what}. '
            "Set matmul to compute in Precision Policy."
        )
    weight = torch.zeros(_FEWEST_ROWS, _FEWEST_ROWS, device=device).to(dtype)
    rows = torch.zeros(_FEWEST_ROWS, _FEWEST_ROWS, device=device, dtype=torch.bfloat16)
    try:
        input_gradient(product(rows, weight, None, None), weight, None)
    except (RuntimeError, ValueError, NotImplementedError, AttributeError) as error:
        raise ConfigError(
            f'matmul "{name}" cannot run on {device} ({first_line(error)}). Set matmul to compute in Precision Policy.'
        ) from error


def _parts(rows: Tensor, weight: Tensor) -> Iterator[slice]:
    count = max(_FEWEST_ROWS, _VALUES_AT_ONCE // max(weight.shape))
    return (slice(start, start + count) for start in range(0, len(rows), count))


def _in_8_bits(rows: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Returns rows (n, k) float32 as (n, k) of `dtype`, and what each is multiplied by, (n, 1). Writes into `rows`."""
    low, high = rows.aminmax(dim=1, keepdim=True)
    top = 127.0 if dtype == torch.int8 else torch.finfo(dtype).max
    scale = (torch.maximum(-low, high) / top).clamp_(min=torch.finfo(torch.float32).tiny)
    rows = rows.div_(scale)
    return (rows.round_() if dtype == torch.int8 else rows.clamp_(-top, top)).to(dtype), scale


def _multiplied(rows: Tensor, columns: Tensor) -> Tensor:
    """Rows (n, k) @ columns (k, m) of one 8-bit dtype, as float32 (n, m)."""
    if rows.dtype != torch.int8:
        one = torch.ones((), device=rows.device)
        return torch._scaled_mm(rows, columns, scale_a=one, scale_b=one, out_dtype=torch.float32)  # pyright: ignore[reportPrivateUsage]
    missing = _FEWEST_ROWS - len(rows)
    padded = torch.nn.functional.pad(rows, (0, 0, 0, missing)) if missing > 0 else rows
    return torch._int_mm(padded, columns)[: len(rows)].to(torch.float32)  # pyright: ignore[reportPrivateUsage]
