"""The layout of nvfp4: two 4-bit floats (E2M1) to a byte, a float8 scale per 16 of them, one float32 scale in all.

ComfyUI keeps the scales of blocks as cuBLAS reads them: tiles of 128 rows by 4 blocks, each with its rows in the order
0, 32, 64, 96, 1, 33 ... (cuBLAS documentation, "1D Block Scaling Factors Layout"). Here they become a plain matrix
once, when a file is read; the weights themselves stay as they are.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

__all__ = ["NVFP4_BLOCK", "block_scales_in_rows", "tiled_shape", "unpack_e2m1"]

NVFP4_BLOCK = 16
"""values that share a scale"""
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_TILE_ROWS, _TILE_BLOCKS, _ROWS_APART = 128, 4, 32


def unpack_e2m1(packed: Tensor) -> Tensor:
    """(out, in / 2) uint8 -> (out, in) float32, exact. Of each byte the upper half comes first."""
    pairs = torch.nn.functional.embedding(packed.to(torch.int32), _pairs(packed.device))
    return pairs.reshape(packed.shape[0], -1)


@functools.lru_cache(maxsize=16)
def _pairs(device: torch.device) -> Tensor:
    """(256, 2) float32: what each byte stands for."""
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
