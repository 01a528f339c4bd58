"""Products with an 8-bit weight in 8 bits: activations and output gradients are rounded row by row.

The gradient of rounding is taken as the identity. The product of the input gradient rounds the output gradient in the
same way. Products run on a few rows at a time, to bound float32 temporaries. Where the rows of a weight were rotated,
activations are rotated before rounding, and an input gradient is rotated back after its product.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from ..abilities import abilities_of
from ..checkpoint import rotated, value_to_a_byte
from ..errors import ConfigError
from ..kernels import Fused, static_width
from ..words import first_line

_VALUES_AT_ONCE = 1 << 24
_FEWEST_ROWS = 32
"""smallest number of rows of a product; torch's int8 product on CUDA needs more than 16"""


def multiplies(weight: Tensor, scale: Tensor | None, dtype: torch.dtype, layout: str = "") -> bool:
    """Returns whether a quantized weight (out, in) can be multiplied in 8-bit `dtype`: it must have this dtype, and one
    scale in all or one for each row.
    """
    scales = 1 if scale is None else scale.numel()
    return weight.dtype == dtype and value_to_a_byte(layout) and scales in (1, weight.shape[0])


def product(x: Tensor, weight: Tensor, scale: Tensor | None, bias: Tensor | None, layout: str = "") -> Tensor:
    """x (..., in) @ (weight * scale).T + bias in x's dtype; weight (out, in) fp8 or int8, scale float32.

    `layout`: the rotation of the weight's rows, as in `checkpoint.dequantise`; "": not rotated.
    """
    rows = x.reshape(-1, x.shape[-1])
    of_column = torch.ones(1, device=x.device) if scale is None else scale.flatten()
    if _by_rows(rows, weight.dtype):
        found = _scaled_product(*_shared_in_8_bits(rows, weight.dtype), weight.t(), of_column, bias)
        return found.view(*x.shape[:-1], -1)
    whole = x.new_empty(len(rows), weight.shape[0])
    # The fused form has no float32 temporaries, so it rounds all rows at once.
    at_once = _shared_in_8_bits(rows, weight.dtype) if not layout and ROUND.on(rows, str(weight.dtype)) else None
    for part in _parts(rows, weight):
        if at_once is not None:
            short, of_row = (one[part] for one in at_once)
        else:
            values = rows[part] if not layout else rotated(rows[part].to(torch.float32), layout)
            short, of_row = _in_8_bits(values, weight.dtype)
        _write(whole[part], _sums(short, weight.t()), of_row, of_column, bias)
    return whole.view(*x.shape[:-1], -1)


def input_gradient(
    gradient: Tensor,
    weight: Tensor,
    scale: Tensor | None,
    layout: str = "",
    columns: Tensor | None = None,
    more: Tensor | None = None,
) -> Tensor:
    """gradient (..., out) @ (weight * scale) in its dtype, plus `more` (n, in), which it may overwrite.

    This product sums over the rows of the weight, so their scale is multiplied into the gradient before rounding.
    `columns`: the result of `in_columns(weight)`.
    """
    rows = gradient.reshape(-1, gradient.shape[-1])
    columns = in_columns(weight) if columns is None else columns
    of_weight = None if scale is None else scale.view(1, -1)
    if _by_rows(rows, weight.dtype):
        short = _in_8_bits(rows, weight.dtype, of_weight, rows.dtype)
        found = _scaled_product(*short, columns, torch.ones(1, device=rows.device), None)
        return (found if more is None else more.add_(found)).view(*gradient.shape[:-1], -1)
    whole = gradient.new_empty(len(rows), weight.shape[1]) if more is None else more
    for part in _parts(rows, weight):
        short, of_row = _in_8_bits(rows[part], weight.dtype, of_weight)
        before = None if more is None else more[part]
        if layout:
            found = rotated(_scaled(_sums(short, columns), of_row), layout)
            whole[part] = found if before is None else found.add_(before)
        else:
            _write(whole[part], _sums(short, columns), of_row, None, before)
    return whole.view(*gradient.shape[:-1], -1)


def in_columns(weight: Tensor) -> Tensor:
    """Returns a weight (out, in) in column-major memory, as 8-bit products on CUDA need their second factor."""
    return weight.t().contiguous().t()


def matmul_bytes(values: int) -> int:
    """Returns the most temporary bytes of a product with a weight of `values`, without tensors of the tokens' size."""
    return values + 13 * _VALUES_AT_ONCE


def check_matmul(dtype: torch.dtype, device: torch.device) -> None:
    """Raises ConfigError if `device` cannot compute such products, by compute capability and a trial."""
    name, card = "int8" if dtype == torch.int8 else "fp8", abilities_of(device)
    if not (card.int8_products if dtype == torch.int8 else card.fp8_products):
        newer = "7.0" if dtype == torch.int8 else "8.9 (RTX 40 and newer)"
        raise ConfigError(
            f'matmul "{name}" cannot run on {device}: it needs compute capability {newer}, and this is {card.what}. '
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
    # Temporary bytes for each value: four in the fused form, else up to thirteen.
    at_once = _VALUES_AT_ONCE * (3 if FINISH.on(rows, str(sums_in(weight.dtype))) else 1)
    count = max(_FEWEST_ROWS, at_once // max(weight.shape))
    return (slice(start, start + count) for start in range(0, len(rows), count))


def _by_rows(rows: Tensor, dtype: torch.dtype) -> bool:
    """Returns whether the product kernel applies the scales of such rows itself."""
    return dtype != torch.int8 and rows.dtype == torch.bfloat16 and _scales_rows(rows.device, dtype)


@functools.cache
def _scales_rows(device: torch.device, dtype: torch.dtype) -> bool:
    """Returns whether 8-bit products of a device accept a scale for each row and column (compute capability 8.9 on)."""
    rows = torch.ones(_FEWEST_ROWS, _FEWEST_ROWS, device=device).to(dtype)
    scales = torch.ones(_FEWEST_ROWS, 1, device=device)
    try:
        torch._scaled_mm(rows, rows.t(), scale_a=scales, scale_b=scales.t(), out_dtype=torch.bfloat16)  # pyright: ignore[reportPrivateUsage]
    except (RuntimeError, ValueError, NotImplementedError):
        return False
    return True


def _in_8_bits(
    rows: Tensor, dtype: torch.dtype, of_column: Tensor | None = None, between: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """Returns float rows (n, k) rounded to `dtype`, and the scale of each row, (n, 1) float32.

    `of_column` (1, k) float32: multiply the columns by it first. `between`: dtype of this product in the plain form.
    """
    if ROUND.on(rows, str(dtype)):
        return ROUND(rows, of_column, dtype)
    if of_column is not None:
        rows = torch.mul(rows, of_column, out=torch.empty_like(rows, dtype=between))
    largest = torch.linalg.vector_norm(rows, float("inf"), dim=1, keepdim=True, dtype=torch.float32)
    scale = largest.div_(_top(dtype)).clamp_(min=torch.finfo(torch.float32).tiny)
    if dtype == torch.int8:
        # Between 1024 and 2048, float16 has only integers, so adding 1536 rounds the quotient to an integer. Its lower
        # byte, the first in memory, is the integer's.
        middle = torch.full((), 1536.0, device=rows.device)
        found = torch.addcdiv(middle, rows, scale, out=torch.empty_like(rows, dtype=torch.float16))
        return found.view(torch.int8)[:, ::2].contiguous(), scale
    # A quotient above the largest value exceeds it by half a unit of float32 at most, and rounds to it.
    return torch.div(rows, scale, out=torch.empty_like(rows, dtype=dtype)), scale


class _Sharing(threading.local):
    """The input rows of several products in one thread, and these rows rounded to 8 bits."""

    rows: Tensor | None = None
    found: tuple[Tensor, Tensor] | None = None


_sharing = _Sharing()


@contextmanager
def rounded_once(x: Tensor) -> Iterator[None]:
    """Inside, products of x (..., in) share its rounded rows; x must not change."""
    _sharing.rows = x.reshape(-1, x.shape[-1])
    try:
        yield
    finally:
        _sharing.rows = _sharing.found = None


def _shared_in_8_bits(rows: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Returns `_in_8_bits` of rows (n, k); inside `rounded_once` it is computed once for the same rows."""
    shared = _sharing.rows
    if shared is None or not _same(shared, rows):
        return _in_8_bits(rows, dtype)
    if _sharing.found is None or _sharing.found[0].dtype != dtype:
        _sharing.found = _in_8_bits(rows, dtype)
    return _sharing.found


def _same(one: Tensor, other: Tensor) -> bool:
    places = [(t.untyped_storage()._cdata, t.storage_offset(), t.shape, t.stride()) for t in (one, other)]  # pyright: ignore[reportPrivateUsage]
    return places[0] == places[1] and one.dtype == other.dtype


def _top(dtype: torch.dtype) -> float:
    return 127.0 if dtype == torch.int8 else torch.finfo(dtype).max


def _rounded(rows: Tensor, of_column: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The body of the fused `_in_8_bits`, without rounding of intermediate values."""
    static_width(rows)
    wide = rows.to(torch.float32) if of_column is None else rows.to(torch.float32) * of_column
    scale = (wide.abs().amax(1, keepdim=True) / _top(dtype)).clamp(min=torch.finfo(torch.float32).tiny)
    found = (wide / scale).clamp(-_top(dtype), _top(dtype))
    return (found.round() if dtype == torch.int8 else found).to(dtype), scale


def _finished(out: Tensor, sums: Tensor, of_row: Tensor, of_column: Tensor | None, added: Tensor | None) -> None:
    """Writes sums (n, m) * of_row (n, 1) * of_column (m,) + added (m,) or (n, m) into `out` (n, m)."""
    static_width(sums)
    found = sums.to(torch.float32) * of_row
    found = found if of_column is None else found * of_column
    out.copy_(found if added is None else found + added)


ROUND = Fused(
    "in_8_bits(Tensor rows, Tensor? of_column, ScalarType dtype) -> (Tensor, Tensor)",
    _rounded,
    lambda rows, of_column, dtype: (
        torch.empty_like(rows, dtype=dtype),
        rows.new_empty((len(rows), 1), dtype=torch.float32),
    ),
)
FINISH = Fused(
    "finished(Tensor(a!) out, Tensor sums, Tensor of_row, Tensor? of_column, Tensor? added) -> ()",
    _finished,
    lambda *inputs: None,
)


def _scaled_product(rows: Tensor, of_row: Tensor, columns: Tensor, of_column: Tensor, bias: Tensor | None) -> Tensor:
    """(rows (n, k) * of_row) @ (columns (k, m) * of_column) + bias as bfloat16, in one kernel."""
    of_columns = of_column.expand(columns.shape[1]).contiguous().view(1, -1)
    return torch._scaled_mm(  # pyright: ignore[reportPrivateUsage]
        rows, columns, scale_a=of_row, scale_b=of_columns, bias=bias, out_dtype=torch.bfloat16
    )


def _sums(rows: Tensor, columns: Tensor) -> Tensor:
    """rows (n, k) @ columns (k, m) of one 8-bit dtype -> (n, m) int32 or float32."""
    if rows.dtype == torch.int8:
        missing = _FEWEST_ROWS - len(rows)
        padded = torch.nn.functional.pad(rows, (0, 0, 0, missing)) if missing > 0 else rows
        return torch._int_mm(padded, columns)[: len(rows)]  # pyright: ignore[reportPrivateUsage]
    one = torch.ones((), device=rows.device)
    return torch._scaled_mm(rows, columns, scale_a=one, scale_b=one, out_dtype=torch.float32)  # pyright: ignore[reportPrivateUsage]


def sums_in(dtype: torch.dtype) -> torch.dtype:
    """Returns the dtype of the sums of products in `dtype`."""
    return torch.int32 if dtype == torch.int8 else torch.float32


def _scaled(sums: Tensor, of_row: Tensor) -> Tensor:
    """Returns sums (n, m) * of_row (n, 1) as float32; it may overwrite them."""
    return torch.mul(sums, of_row) if sums.dtype == torch.int32 else sums.mul_(of_row)


def _write(
    out: Tensor, sums: Tensor, of_row: Tensor, of_column: Tensor | None = None, added: Tensor | None = None
) -> None:
    """Writes the result of `_finished`: fused, with one kernel, or with two if columns have scales."""
    if FINISH.on(out, str(sums.dtype)):
        FINISH(out, sums, of_row, of_column, added)
    elif of_column is None:
        torch.mul(sums, of_row, out=out) if added is None else torch.addcmul(added, sums, of_row, out=out)
    elif added is None:
        torch.mul(_scaled(sums, of_row), of_column, out=out)
    else:
        torch.addcmul(added, _scaled(sums, of_row), of_column, out=out)
