"""The arithmetic of quantized weights: value = stored * scale, multiplied in float32, rounded once.

[nvfp4] The layout of nvfp4: two 4-bit floats (E2M1) to a byte, a float8 scale per 16 of them, one float32 scale in all.

ComfyUI keeps the scales of blocks as cuBLAS reads them: tiles of 128 rows by 4 blocks, each with its rows in the order
0, 32, 64, 96, 1, 33 ... (cuBLAS documentation, "1D Block Scaling Factors Layout"). Here they become a plain matrix
once, when a file is read; the weights themselves stay as they are.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

__all__ = [
    "NVFP4_BLOCK",
    "block_scales_in_rows",
    "dequantise",
    "scale_fits",
    "tiled_shape",
    "unpacking_bytes",
]


NVFP4_BLOCK = 16
"""values that share a scale"""
_VALUES_AT_ONCE = 1 << 24
"""values that are float32 at one time while a tensor is unpacked: 64 MiB"""
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_TILE_ROWS, _TILE_BLOCKS, _ROWS_APART = 128, 4, 32


def unpack_e2m1(packed: Tensor) -> Tensor:
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


def dequantise(weight: Tensor, scale: Tensor | None, dtype: torch.dtype, whole_scale: Tensor | None = None) -> Tensor:
    """Returns `weight` in `dtype`: (out, in) of any float dtype, or nvfp4, (out, in / 2) uint8.

    `scale` float: one value; one per row, (out,) or (out, 1); or one per block of a row, (out, blocks) or
    (out, blocks, 1). None: the weight as it is. `whole_scale`: one more value for the whole tensor, which each scale is
    multiplied by first, as ComfyUI does it.
    """
    if scale is None:
        return weight.to(dtype)
    scale = scale.to(torch.float32)
    if whole_scale is not None:
        scale = scale * whole_scale.to(torch.float32)
    values_per_item = 2 if weight.dtype == torch.uint8 else 1
    rows = max(1, _VALUES_AT_ONCE // max(1, values_per_item * weight[0].numel())) if len(weight) else 1
    if rows >= len(weight):
        return _scaled(weight, scale).to(dtype)
    shape = (*weight.shape[:-1], values_per_item * weight.shape[-1])
    whole = torch.empty(shape, dtype=dtype, device=weight.device)
    for start in range(0, len(weight), rows):
        part = slice(start, start + rows)
        whole[part] = _scaled(weight[part], scale if scale.numel() == 1 else scale[part])
    return whole


def _scaled(weight: Tensor, scale: Tensor) -> Tensor:
    """Some rows of a weight in float32, with the scales of these rows, or the one of all."""
    values = unpack_e2m1(weight) if weight.dtype == torch.uint8 else weight.to(torch.float32, copy=True)
    if scale.numel() == 1:
        return values.mul_(scale.reshape(()))
    rows = scale.reshape(weight.shape[0], -1, 1)
    values.view(weight.shape[0], rows.shape[1], -1).mul_(rows)
    return values


def unpacking_bytes(values: int, dtype: torch.dtype, *, packed: bool = False) -> int:
    """The most memory `dequantise` takes beside a weight of so many values: its copy in `dtype`, and what is float32.

    `packed`: nvfp4, which is looked up by an int32 for two values.
    """
    return values * dtype.itemsize + min(values, _VALUES_AT_ONCE) * (6 if packed else 4)


def scale_fits(weight: tuple[int, ...], scale: tuple[int, ...]) -> bool:
    """Whether a scale of that shape belongs to a weight of that one."""
    count = torch.Size(scale).numel()
    if count == 1:
        return True
    if len(weight) != 2 or not weight[0] or not scale or scale[0] != weight[0] or not count or count % weight[0]:
        return False
    return weight[1] % (count // weight[0]) == 0
