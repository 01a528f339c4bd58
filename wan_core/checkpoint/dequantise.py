"""Dequantization: value = stored * scale, multiplied in float32, rounded once.

nvfp4: two 4-bit floats (E2M1) per byte, one float8 scale per 16 values, one float32 scale per tensor. mxfp8: float8
(E4M3) values, one power of two per 32 values, stored as its exponent byte (E8M0).

ComfyUI stores block scales in the layout of cuBLAS ("1D Block Scaling Factors Layout"): tiles of 128 rows by 4 blocks,
with rows in the order 0, 32, 64, 96, 1, 33 ... Reading a file converts them to a plain matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..kernels import Fused
from .ggml import BLOCKS, block_parts, table
from .integers import INTEGERS, SCALED_TOGETHER, rotated, six_bits, unpack_integers

NVFP4, NVFP4_BLOCK = "NVFP4", 16
MXFP8, MXFP8_BLOCK = "MXFP8", 32
_CPU_VALUES = 1 << 20
_MOST_TEMPORARY_BYTES = 1 << 27
_TEMPORARY_BYTES = {"": 0, NVFP4: 4, MXFP8: 1, **dict.fromkeys(INTEGERS, 8), **dict.fromkeys(BLOCKS, 4), "Q8_0": 1}
"""bytes of temporaries per value, by layout"""
APART = ("Q4_K", "Q5_K")
"""layouts whose weights are not dequantized together: torch.compile would generate a kernel per weight and a copy"""
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_TILE_ROWS, _TILE_BLOCKS, _ROWS_APART = 128, 4, 32
_MANTISSA_BITS = 23


def tiled_shape(rows: int, blocks: int) -> tuple[int, int]:
    """Returns the stored shape of (rows, blocks) scales: both rounded up to complete tiles."""
    return -(-rows // _TILE_ROWS) * _TILE_ROWS, -(-blocks // _TILE_BLOCKS) * _TILE_BLOCKS


def block_scales_in_rows(tiled: Tensor, rows: int, blocks: int) -> Tensor:
    """Converts stored scales, `tiled_shape(rows, blocks)`, to a plain matrix (rows, blocks) of the same dtype."""
    high, wide = tiled_shape(rows, blocks)
    tiles = tiled.reshape(
        high // _TILE_ROWS, wide // _TILE_BLOCKS, _ROWS_APART, _TILE_ROWS // _ROWS_APART, _TILE_BLOCKS
    )
    return tiles.permute(0, 3, 2, 1, 4).reshape(high, wide)[:rows, :blocks].contiguous()


def row_values(items: int, layout: str) -> int:
    """Returns the number of values in a row of `items` stored elements; `layout` as in `dequantise`."""
    if layout in BLOCKS:
        return items // BLOCKS[layout].size_bytes * BLOCKS[layout].values
    if layout in INTEGERS:
        return INTEGERS[layout].row_values(items)
    return 2 * items if layout == NVFP4 else items


def dequantise(
    weight: Tensor, scale: Tensor | None, dtype: torch.dtype, whole_scale: Tensor | None = None, *, layout: str = ""
) -> Tensor:
    """Returns `weight` in `dtype`: (out, in) of any float dtype or int8, or (out, items) of a `layout`.

    `layout`: NVFP4, MXFP8, a key of `INTEGERS`, or a key of `BLOCKS`, whose bytes contain their scales. `scale`: None,
    one value, one per row (out,) or (out, 1), or one per block (out, blocks) or (out, blocks, 1); float, but uint8 for
    MXFP8. `whole_scale`: a factor of the complete tensor, which is first multiplied into each scale, as in ComfyUI; for
    codes of `INTEGERS`, their levels (16,).
    """
    if scale is None and not layout:
        return weight.to(dtype)
    if FUSED.on(weight, fused_kind(weight, layout)):
        return FUSED(*fused_inputs(weight, scale, dtype, whole_scale, layout)).view(len(weight), -1)
    shape = (*weight.shape[:-1], row_values(weight.shape[-1], layout)) if layout else weight.shape
    found = torch.empty(shape, dtype=dtype, device=weight.device)
    # Pieces limit the float32 temporaries: 2**20 values on a CPU, which fit into its cache, and 128 MiB on a GPU.
    on_gpu = _MOST_TEMPORARY_BYTES // _TEMPORARY_BYTES[layout] if _TEMPORARY_BYTES[layout] else found.numel()
    at_once = _CPU_VALUES if weight.device.type == "cpu" else on_gpu
    rows = max(1, at_once * len(weight) // max(1, found.numel()))
    for start in range(0, len(weight), rows):
        part = slice(start, start + rows)
        scales = scale if scale is None or scale.numel() == 1 else scale[part]
        _dequantise_into(found[part], weight[part], scales, whole_scale, layout)
    return found


def dequantise_together(
    weights: Sequence[Tensor], scales: Sequence[Tensor | None], dtype: torch.dtype, layout: str
) -> tuple[Tensor, ...] | None:
    """Dequantizes two or three weights of equal shape, dtype and layout in one kernel; None if no kernel is fused.

    The results are views of one tensor.
    """
    if not SEVERAL.on(weights[0], fused_kind(weights[0], layout)):
        return None
    return SEVERAL(*several_inputs(weights, scales, dtype, layout)).view(len(weights), len(weights[0]), -1).unbind()


def several_inputs(
    weights: Sequence[Tensor], scales: Sequence[Tensor | None], dtype: torch.dtype, layout: str
) -> tuple[object, ...]:
    """Returns the arguments of `SEVERAL` for two or three weights."""
    each = [fused_inputs(*pair, dtype, None, layout) for pair in zip(weights, scales, strict=True)]
    missing = (None,) * (3 - len(each))
    return *(one[0] for one in each), *missing, *(one[1] for one in each), *missing, *each[0][3:]


def _dequantise_into(
    out: Tensor, weight: Tensor, scale: Tensor | None, whole_scale: Tensor | None, layout: str
) -> None:
    """Dequantizes rows into `out` (rows, values). `scale`: one value, or the scales of these rows."""
    if layout in BLOCKS:
        values, scale, offset = block_parts(weight, layout)
    else:
        offset, scale = None, _scale(len(weight), scale, whole_scale, layout)
        if layout in INTEGERS and INTEGERS_OF.on(weight, layout):
            values = rotated(INTEGERS_OF(weight.view(torch.uint8), whole_scale, layout), layout)
        elif layout in INTEGERS:
            values = unpack_integers(weight, layout, whole_scale)
        elif layout == NVFP4:
            values = _e2m1(weight)
        elif weight.dtype.itemsize == 1 and weight.is_floating_point():
            values = out.copy_(weight)  # torch.mul does not support float8; copying to a wider dtype is exact
        else:
            values = weight
        values = values.view(len(weight), 1 if scale is None else scale.shape[1], -1)
    out = out.view(values.shape)
    if scale is None:
        out.copy_(values)
    elif offset is None:  # The kernel promotes mixed dtypes itself.
        torch.mul(values, scale, out=out)
    elif out.device.type == "cpu":  # addcmul on a CPU rounds once, ggml rounds twice
        out.copy_(torch.mul(values, scale).add_(offset))
    else:
        torch.addcmul(offset, values, scale, out=out)


def _scale(rows: int, scale: Tensor | None, whole_scale: Tensor | None, layout: str) -> Tensor | None:
    """Returns the scales of the groups of each row, (rows, groups, 1) float32, or (1, 1, 1) for one scale."""
    if scale is None:
        return None
    scale = scale_values(scale, layout)
    if whole_scale is not None and layout not in INTEGERS:
        scale = scale * whole_scale.to(torch.float32)
    return scale.reshape((1, 1, 1) if scale.numel() == 1 else (rows, -1, 1))


def fused_kind(weight: Tensor, layout: str) -> str:
    """Returns the name of the fused kernel for such weights in `Fused`."""
    return layout or str(weight.dtype)


def fused_inputs(
    weight: Tensor, scale: Tensor | None, dtype: torch.dtype, whole_scale: Tensor | None, layout: str
) -> tuple[object, ...]:
    """Returns the arguments of `FUSED`. 8-bit floats are passed as bytes, since triton supports them on newer cards
    only."""
    of_scale = weight.dtype if scale is None else scale.dtype
    return _bytes(weight), None if scale is None else _bytes(scale), whole_scale, dtype, layout, weight.dtype, of_scale


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.view(torch.uint8) if tensor.dtype.itemsize == 1 and tensor.is_floating_point() else tensor


def _in_one_pass(
    weight: Tensor,
    scale: Tensor | None,
    whole_scale: Tensor | None,
    dtype: torch.dtype,
    layout: str,
    of_weight: torch.dtype,
    of_scale: torch.dtype,
) -> Tensor:
    """Computes `dequantise` without pieces, on the arguments of `fused_inputs`; returns (rows, groups, values).

    The result stays in groups, because the compiler would copy the values for a view of another shape.
    """
    offset = None
    if layout in BLOCKS:
        values, scales, offset = block_parts(weight, layout)
    else:
        scales = None if scale is None else _scale(len(weight), _floats(scale, of_scale), whole_scale, layout)
        assert scales is not None
        values = _e2m1_values(weight) if layout == NVFP4 else _floats(weight, of_weight)
        values = values.reshape(len(weight), scales.shape[1], -1)
    found = values.to(torch.float32) * scales
    return (found if offset is None else found + offset).to(dtype)


def _several_in_one_pass(
    first: Tensor,
    second: Tensor,
    third: Tensor | None,
    of_first: Tensor | None,
    of_second: Tensor | None,
    of_third: Tensor | None,
    *kind: Any,
) -> Tensor:
    """Computes `_in_one_pass` for two or three weights of equal shape, and concatenates the results along the rows."""
    given = [(first, of_first), (second, of_second), (third, of_third)]
    return torch.cat([_in_one_pass(one, scale, None, *kind) for one, scale in given if one is not None])


def _floats(stored: Tensor, dtype: torch.dtype) -> Tensor:
    """Converts 8-bit floats of `dtype`, stored as bytes, exactly to float32; returns other tensors unchanged."""
    if dtype not in (torch.float8_e4m3fn, torch.float8_e5m2) or stored.dtype != torch.uint8:
        return stored
    wide = stored.to(torch.int16)
    if dtype == torch.float8_e5m2:  # e5m2 is the upper half of a float16
        return (wide << 8).view(torch.float16).to(torch.float32)
    # float16 has one more exponent bit, and an exponent bias that is larger by 8.
    found = ((wide & 128) << 8 | (wide & 127) << 7).view(torch.float16).to(torch.float32) * 256
    return torch.where((wide & 127) == 127, torch.nan, found)


def _e2m1_values(stored: Tensor) -> Tensor:
    """Computes `_e2m1` without a table, in float32."""
    codes = torch.stack([stored >> 4, stored & 15], dim=-1).flatten(1).to(torch.int32)
    size = codes & 7
    found = torch.where(size < 4, size * 0.5, torch.where(size < 6, size - 2, size * 2 - 8).to(torch.float32))
    return torch.where(codes > 7, -found, found)


FUSED = Fused(
    "dequantise(Tensor weight, Tensor? scale, Tensor? whole_scale, ScalarType dtype, str layout, ScalarType of_weight,"
    " ScalarType of_scale) -> Tensor",
    _in_one_pass,
    lambda weight, scale, whole_scale, dtype, layout, *rest: weight.new_empty(
        (len(weight), row_values(weight.shape[1], layout)), dtype=dtype
    ),
)
"""`dequantise` of one weight in one kernel; not for rotated integers, whose rotation is a matrix product"""

SEVERAL = Fused(
    "dequantise_several(Tensor first, Tensor second, Tensor? third, Tensor? of_first, Tensor? of_second,"
    " Tensor? of_third, ScalarType dtype, str layout, ScalarType of_weight, ScalarType of_scale) -> Tensor",
    _several_in_one_pass,
    lambda first, second, third, of_first, of_second, of_third, dtype, layout, *rest: first.new_empty(
        ((2 if third is None else 3) * len(first), row_values(first.shape[1], layout)), dtype=dtype
    ),
)


def _integers_in_one_pass(packed: Tensor, levels: Tensor | None, layout: str) -> Tensor:
    """Returns integers (out, in) float32 of 4-bit values or codes (out, bytes) uint8, not rotated back."""
    known = INTEGERS[layout]
    rows, width = len(packed), known.row_values(packed.shape[1])
    if known.bits == 6:
        values = six_bits(packed, width).to(torch.float32) - 32
    else:
        halves = packed[:, : width // 2]
        codes = torch.stack([halves & 15, halves >> 4], dim=2).flatten(1).to(torch.int32)
        if not known.coded:
            return torch.where(codes > 7, codes - 16, codes).to(torch.float32)
        values = (codes - 8 if levels is None else torch.nn.functional.embedding(codes, levels[:, None])).to(
            torch.float32
        )
    scales = _floats(packed[:, known.bits * width // 8 :], torch.float8_e4m3fn)
    scaled = values.view(rows, -1, SCALED_TOGETHER) * scales.unsqueeze(2)
    return scaled.round().clamp(-127, 127).view(rows, width)


INTEGERS_OF = Fused(
    "integers_of(Tensor packed, Tensor? levels, str layout) -> Tensor",
    _integers_in_one_pass,
    lambda packed, levels, layout: packed.new_empty(
        (len(packed), row_values(packed.shape[1], layout)), dtype=torch.float32
    ),
)
"""`unpack_integers` of 4-bit values and codes in one kernel, without the rotation"""


def _e2m1(stored: Tensor) -> Tensor:
    """(out, in / 2) uint8 -> (out, in) bfloat16, exact. The upper half of a byte comes first."""
    values = (*_E2M1, *(-value for value in _E2M1))
    both = tuple(values[half] for byte in range(256) for half in (byte >> 4, byte & 15))
    pairs = table(both, torch.bfloat16, stored.device).view(256, 2)
    return torch.nn.functional.embedding(stored.to(torch.int32), pairs).flatten(1)


def scale_values(scale: Tensor, layout: str) -> Tensor:
    """Returns a scale in float32, of the same shape."""
    if layout != MXFP8:
        return scale.to(torch.float32)
    # E8M0 has the exponent bias of float32: 0 becomes 0, 255 infinity.
    return (scale.to(torch.int32) << _MANTISSA_BITS).view(torch.float32)


def unpacking_bytes(values: int, dtype: torch.dtype, layout: str = "") -> int:
    """Returns the peak memory of `dequantise` for a weight of `values` values: result and temporaries."""
    return values * dtype.itemsize + min(values * _TEMPORARY_BYTES[layout], _MOST_TEMPORARY_BYTES)


def scale_fits(weight: tuple[int, ...], scale: tuple[int, ...]) -> bool:
    """Returns whether the shapes of a weight and its scale fit together."""
    count = torch.Size(scale).numel()
    if count == 1:
        return True
    if len(weight) != 2 or not weight[0] or not scale or scale[0] != weight[0] or not count or count % weight[0]:
        return False
    return weight[1] % (count // weight[0]) == 0
