"""The arithmetic of quantized weights: value = stored * scale, multiplied in float32, rounded once.

The layout of nvfp4: two 4-bit floats (E2M1) to a byte, a float8 scale per 16 of them, one float32 scale in all. That
of mxfp8: float8 (E4M3), for each 32 of them a power of two, of which a byte (E8M0) is the exponent.

ComfyUI keeps the scales of blocks as cuBLAS reads them: tiles of 128 rows by 4 blocks, each with its rows in the order
0, 32, 64, 96, 1, 33 ... (cuBLAS documentation, "1D Block Scaling Factors Layout"). Here they become a plain matrix
once, when a file is read; the weights themselves stay as they are.
"""

from __future__ import annotations

import functools
from math import prod

import torch
from torch import Tensor

from .ggml import BLOCKS, unpack_blocks
from .integers import INTEGERS, unpack_integers

NVFP4, NVFP4_BLOCK = "NVFP4", 16
"""its name here, and the values that share a scale"""
MXFP8, MXFP8_BLOCK = "MXFP8", 32
_VALUES_AT_ONCE = 1 << 24
"""values that are float32 at one time while a tensor is unpacked: 64 MiB"""
_BESIDE = {"": 4, NVFP4: 6, MXFP8: 5, **dict.fromkeys(INTEGERS, 8), **dict.fromkeys(BLOCKS, 7)}
"""bytes for each of those, by layout: float32; the int32 that looks two up; exponents; the same before it is rotated
back; three pieces of one byte"""
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_TILE_ROWS, _TILE_BLOCKS, _ROWS_APART = 128, 4, 32
_MANTISSA_BITS = 23
"""of float32, below its exponent"""


def _unpack_e2m1(packed: Tensor) -> Tensor:
    """(out, in / 2) uint8 -> (out, in) float32, exact. Of each byte the upper half comes first."""
    pairs = torch.nn.functional.embedding(packed.to(torch.int32), _pairs(packed.device))
    return pairs.reshape(packed.shape[0], -1)


@functools.lru_cache(maxsize=16)
def _pairs(device: torch.device) -> Tensor:
    """Returns (256, 2) float32: the two values each byte stands for."""
    values = torch.tensor([*_E2M1, *(-value for value in _E2M1)], device=device)
    byte = torch.arange(256, device=device)
    return torch.stack([values[byte >> 4], values[byte & 15]], dim=1)


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
    rows = max(1, _VALUES_AT_ONCE * len(weight) // max(1, prod(shape)))
    if rows >= len(weight):
        return _unpacked(weight, scale, whole_scale, layout).to(dtype)
    whole = torch.empty(shape, dtype=dtype, device=weight.device)
    for start in range(0, len(weight), rows):
        part = slice(start, start + rows)
        scales = scale if scale is None or scale.numel() == 1 else scale[part]
        whole[part] = _unpacked(weight[part], scales, whole_scale, layout)
    return whole


def _unpacked(weight: Tensor, scale: Tensor | None, whole_scale: Tensor | None, layout: str) -> Tensor:
    """Some rows of a weight in float32, with the scales of these rows, or the one of all."""
    if layout in BLOCKS:
        return unpack_blocks(weight, layout)
    if layout in INTEGERS:
        values = unpack_integers(weight, layout, whole_scale)
    else:
        values = _unpack_e2m1(weight) if layout == NVFP4 else weight.to(torch.float32, copy=True)
    if scale is None:
        return values
    scale = scale_values(scale, layout)
    if whole_scale is not None and layout not in INTEGERS:
        scale = scale * whole_scale.to(torch.float32)
    if scale.numel() == 1:
        return values.mul_(scale.reshape(()))
    rows = scale.reshape(weight.shape[0], -1, 1)
    values.view(weight.shape[0], rows.shape[1], -1).mul_(rows)
    return values


def scale_values(scale: Tensor, layout: str) -> Tensor:
    """Returns a scale as `dequantise` takes it in float32, of the same shape.

    The exponents of MXFP8 are those of float32: 0 stands for a block of zeros, 255 for no number.
    """
    if layout != MXFP8:
        return scale.to(torch.float32)
    return (scale.to(torch.int32) << _MANTISSA_BITS).view(torch.float32)


def unpacking_bytes(values: int, dtype: torch.dtype, layout: str = "") -> int:
    """The most memory `dequantise` takes beside a weight of so many values: its copy in `dtype`, what is float32."""
    return values * dtype.itemsize + min(values, _VALUES_AT_ONCE) * _BESIDE[layout]


def scale_fits(weight: tuple[int, ...], scale: tuple[int, ...]) -> bool:
    """Returns whether a scale of that shape belongs to a weight of that one."""
    count = torch.Size(scale).numel()
    if count == 1:
        return True
    if len(weight) != 2 or not weight[0] or not scale or scale[0] != weight[0] or not count or count % weight[0]:
        return False
    return weight[1] % (count // weight[0]) == 0
