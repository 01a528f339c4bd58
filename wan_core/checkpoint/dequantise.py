"""The arithmetic of quantized weights: value = stored * scale, multiplied in float32, rounded once.

The layout of nvfp4: two 4-bit floats (E2M1) to a byte, a float8 scale per 16 of them, one float32 scale in all. That
of mxfp8: float8 (E4M3), for each 32 of them a power of two, of which a byte (E8M0) is the exponent.

ComfyUI keeps the scales of blocks as cuBLAS reads them: tiles of 128 rows by 4 blocks, each with its rows in the order
0, 32, 64, 96, 1, 33 ... (cuBLAS documentation, "1D Block Scaling Factors Layout"). Here they become a plain matrix
once, when a file is read; the weights themselves stay as they are.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .ggml import BLOCKS, block_parts, table
from .integers import INTEGERS, unpack_integers

NVFP4, NVFP4_BLOCK = "NVFP4", 16
"""its name here, and the values that share a scale"""
MXFP8, MXFP8_BLOCK = "MXFP8", 32
_CPU_VALUES = 1 << 20
"""values that a CPU dequantizes at one time: the float32 copies it makes of them stay in its cache"""
_BESIDE_BYTES = 1 << 27
"""of temporaries on any other device, beside the result; a weight that takes more is dequantized in pieces"""
_BESIDE = {"": 0, NVFP4: 4, MXFP8: 1, **dict.fromkeys(INTEGERS, 8), **dict.fromkeys(BLOCKS, 4), "Q8_0": 1}
"""bytes of them for each value, by layout: none; the int32 that looks two up, and both; exponents; the same before it
is rotated back; pieces of one byte"""
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_TILE_ROWS, _TILE_BLOCKS, _ROWS_APART = 128, 4, 32
_MANTISSA_BITS = 23
"""of float32, below its exponent"""


def tiled_shape(rows: int, blocks: int) -> tuple[int, int]:
    """The shape of the scales as stored, for (rows, blocks) of them: both rounded up to whole tiles."""
    return -(-rows // _TILE_ROWS) * _TILE_ROWS, -(-blocks // _TILE_BLOCKS) * _TILE_BLOCKS


def block_scales_in_rows(tiled: Tensor, rows: int, blocks: int) -> Tensor:
    """Scales as stored, `tiled_shape(rows, blocks)`, as a plain matrix (rows, blocks) of the same dtype."""
    high, wide = tiled_shape(rows, blocks)
    tiles = tiled.reshape(
        high // _TILE_ROWS, wide // _TILE_BLOCKS, _ROWS_APART, _TILE_ROWS // _ROWS_APART, _TILE_BLOCKS
    )
    return tiles.permute(0, 3, 2, 1, 4).reshape(high, wide)[:rows, :blocks].contiguous()


def row_values(items: int, layout: str) -> int:
    """Returns how many values a row of so many items stands for; `layout` as in `dequantise`."""
    if layout in BLOCKS:
        return items // BLOCKS[layout].size_bytes * BLOCKS[layout].values
    if layout in INTEGERS:
        return INTEGERS[layout].row_values(items)
    return 2 * items if layout == NVFP4 else items


def dequantise(
    weight: Tensor, scale: Tensor | None, dtype: torch.dtype, whole_scale: Tensor | None = None, *, layout: str = ""
) -> Tensor:
    """Returns `weight` in `dtype`: (out, in) of any float dtype or int8; or (out, items) of a `layout`.

    `layout`: NVFP4, MXFP8, a kind of `INTEGERS`, or one of `BLOCKS`, which holds its scales itself. `scale` float: one
    value; one per row, (out,) or (out, 1); or one per block of a row, (out, blocks) or (out, blocks, 1); of MXFP8
    uint8. None: the weight as it is. `whole_scale`: one more value for the whole tensor, which each scale is
    multiplied by first, as ComfyUI does it; of codes in `INTEGERS` the levels they stand for.
    """
    if scale is None and not layout:
        return weight.to(dtype)
    shape = (*weight.shape[:-1], row_values(weight.shape[-1], layout)) if layout else weight.shape
    found = torch.empty(shape, dtype=dtype, device=weight.device)
    on_cpu = weight.device.type == "cpu"
    at_once = _CPU_VALUES if on_cpu else _BESIDE_BYTES // _BESIDE[layout] if _BESIDE[layout] else found.numel()
    rows = max(1, at_once * len(weight) // max(1, found.numel()))
    for start in range(0, len(weight), rows):
        part = slice(start, start + rows)
        scales = scale if scale is None or scale.numel() == 1 else scale[part]
        _dequantise_into(found[part], weight[part], scales, whole_scale, layout)
    return found


def _dequantise_into(
    out: Tensor, weight: Tensor, scale: Tensor | None, whole_scale: Tensor | None, layout: str
) -> None:
    """Writes some rows of a weight, with the scales of these rows or the one of all, into `out` (rows, values).

    Operations take narrow values and float32 scales as they are: a GPU casts them within one kernel.
    """
    if layout in BLOCKS:
        values, scale, offset = block_parts(weight, layout)
    else:
        offset, scale = None, _scale(len(weight), scale, whole_scale, layout)
        if layout in INTEGERS:
            values = unpack_integers(weight, layout, whole_scale)
        elif layout == NVFP4:
            values = _e2m1(weight)
        elif weight.dtype.itemsize == 1 and weight.is_floating_point():
            values = out.copy_(weight)  # float8 is no operand, and 16 bits hold it
        else:
            values = weight
        values = values.view(len(weight), 1 if scale is None else scale.shape[1], -1)
    out = out.view(values.shape)
    if scale is None:
        out.copy_(values)
    elif offset is None:
        torch.mul(values, scale, out=out)
    elif out.device.type == "cpu":  # its addcmul rounds once, ggml twice
        out.copy_(torch.mul(values, scale).add_(offset))
    else:
        torch.addcmul(offset, values, scale, out=out)


def _scale(rows: int, scale: Tensor | None, whole_scale: Tensor | None, layout: str) -> Tensor | None:
    """Returns (rows or 1, groups, 1) float32: what each group of a row's values is multiplied by."""
    if scale is None:
        return None
    scale = scale_values(scale, layout)
    if whole_scale is not None and layout not in INTEGERS:
        scale = scale * whole_scale.to(torch.float32)
    return scale.reshape((1, 1, 1) if scale.numel() == 1 else (rows, -1, 1))


def _e2m1(stored: Tensor) -> Tensor:
    """(out, in / 2) uint8 -> (out, in) bfloat16, exact. Of each byte the upper half comes first."""
    values = (*_E2M1, *(-value for value in _E2M1))
    both = tuple(values[half] for byte in range(256) for half in (byte >> 4, byte & 15))
    pairs = table(both, torch.bfloat16, stored.device).view(256, 2)
    return torch.nn.functional.embedding(stored.to(torch.int32), pairs).flatten(1)


def scale_values(scale: Tensor, layout: str) -> Tensor:
    """Returns a scale as `dequantise` takes it in float32, of the same shape.

    The exponents of MXFP8 are those of float32: 0 stands for a block of zeros, 255 for no number.
    """
    if layout != MXFP8:
        return scale.to(torch.float32)
    return (scale.to(torch.int32) << _MANTISSA_BITS).view(torch.float32)


def unpacking_bytes(values: int, dtype: torch.dtype, layout: str = "") -> int:
    """The most memory `dequantise` takes beside a weight of so many values: the result, and temporaries."""
    return values * dtype.itemsize + min(values * _BESIDE[layout], _BESIDE_BYTES)


def scale_fits(weight: tuple[int, ...], scale: tuple[int, ...]) -> bool:
    """Returns whether a scale of that shape belongs to a weight of that one."""
    count = torch.Size(scale).numel()
    if count == 1:
        return True
    if len(weight) != 2 or not weight[0] or not scale or scale[0] != weight[0] or not count or count % weight[0]:
        return False
    return weight[1] % (count // weight[0]) == 0
