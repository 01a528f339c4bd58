"""The blocks of GGUF: how ggml packs 32 or 256 values of a row with their scales, and their unpacking on any device.

Layouts: the GGUF specification and the block structures of ggml (ggml-common.h); half-precision scales, bits from low
to high. In float32 and in ggml's order of operations, so the values are those of the package gguf to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class BlockLayout:
    """One kind of block."""

    values: int
    """in a block, neighbours in a row"""
    size_bytes: int
    scales: tuple[int, ...]
    """the bytes where a half-precision number begins: the scale, and what is added or its scale"""
    unpack: Callable[[Tensor], Tensor]
    """(blocks, size_bytes) uint8 -> (blocks, values) float32"""


def unpack_blocks(packed: Tensor, kind: str) -> Tensor:
    """Rows of whole blocks, (rows, bytes) uint8, as (rows, values) float32; `kind` is one of `BLOCKS`."""
    layout = BLOCKS[kind]
    return layout.unpack(packed.reshape(-1, layout.size_bytes)).view(packed.shape[0], -1)


def block_scales(packed: Tensor, kind: str) -> Tensor:
    """Returns the half-precision scales of all blocks (scales, blocks, 1): where they are finite, every value is."""
    layout = BLOCKS[kind]
    blocks = packed.reshape(-1, layout.size_bytes)
    return torch.stack([blocks[:, at : at + 2].contiguous().view(torch.float16) for at in layout.scales])


def _half(block: Tensor, at: int) -> Tensor:
    """(blocks, 1) float32: the half-precision number that begins at byte `at`."""
    return block[:, at : at + 2].contiguous().view(torch.float16).to(torch.float32)


def _bits(packed: Tensor, width: int, dim: int) -> Tensor:
    """Splits bytes into numbers of `width` bits, the lowest first, along a new dimension `dim`."""
    shifts = torch.arange(0, 8, width, dtype=torch.uint8, device=packed.device)
    shape = [1] * (packed.ndim + 1)
    shape[dim] = len(shifts)
    return (packed.unsqueeze(dim) >> shifts.view(shape)) & ((1 << width) - 1)


def _q8_0(block: Tensor) -> Tensor:
    return block[:, 2:].view(torch.int8).to(torch.float32).mul_(_half(block, 0))


def _q4_0(block: Tensor) -> Tensor:
    return _nibbles(block[:, 2:]).to(torch.float32).sub_(8).mul_(_half(block, 0))


def _q4_1(block: Tensor) -> Tensor:
    return _nibbles(block[:, 4:]).to(torch.float32).mul_(_half(block, 0)).add_(_half(block, 2))


def _q5_0(block: Tensor) -> Tensor:
    return _with_fifth_bit(block[:, 6:], block[:, 2:6]).to(torch.float32).sub_(16).mul_(_half(block, 0))


def _q5_1(block: Tensor) -> Tensor:
    values = _with_fifth_bit(block[:, 8:], block[:, 4:8]).to(torch.float32)
    return values.mul_(_half(block, 0)).add_(_half(block, 2))


def _nibbles(packed: Tensor) -> Tensor:
    """(blocks, n) -> (blocks, 2 n): all lower halves, then all upper ones."""
    return _bits(packed, 4, 1).flatten(1)


def _with_fifth_bit(packed: Tensor, high: Tensor) -> Tensor:
    return _nibbles(packed) | (_bits(high, 1, 2).flatten(1) << 4)


def _q2_k(block: Tensor) -> Tensor:
    scales, d, least = block[:, :16], _half(block, 80), _half(block, 82)
    values = _bits(block[:, 16:80].reshape(-1, 2, 32), 2, 2).reshape(-1, 16, 16).to(torch.float32)
    return _times_and_less(values, d * (scales & 15), least * (scales >> 4))


def _q3_k(block: Tensor) -> Tensor:
    low = _bits(block[:, 32:96].reshape(-1, 2, 32), 2, 2).reshape(-1, 8, 32)
    values = (low | (_bits(block[:, :32], 1, 1) << 2)).reshape(-1, 16, 16).to(torch.float32).sub_(4)
    # Sixteen scales of 6 bits: the lower four of each in eight bytes, the upper two in four.
    scales = _nibbles(block[:, 96:104]) | (_bits(block[:, 104:108], 2, 1).flatten(1) << 4)
    return values.mul_((_half(block, 108) * (scales.to(torch.float32) - 32)).unsqueeze(2)).flatten(1)


def _q4_k(block: Tensor) -> Tensor:
    values = _bits(block[:, 16:].reshape(-1, 4, 32), 4, 2).reshape(-1, 8, 32).to(torch.float32)
    return _times_and_less(values, *_scales_of_eight(block))


def _q5_k(block: Tensor) -> Tensor:
    low = _bits(block[:, 48:].reshape(-1, 4, 32), 4, 2).reshape(-1, 8, 32)
    values = (low | (_bits(block[:, 16:48], 1, 1) << 4)).to(torch.float32)
    return _times_and_less(values, *_scales_of_eight(block))


def _q6_k(block: Tensor) -> Tensor:
    low = _bits(block[:, :128].reshape(-1, 2, 64), 4, 2).reshape(-1, 8, 32)
    high = _bits(block[:, 128:192].reshape(-1, 2, 32), 2, 2).reshape(-1, 8, 32)
    values = (low | (high << 4)).reshape(-1, 16, 16).to(torch.float32).sub_(32)
    scales = block[:, 192:208].view(torch.int8).to(torch.float32)
    return values.mul_((_half(block, 208) * scales).unsqueeze(2)).flatten(1)


def _scales_of_eight(block: Tensor) -> tuple[Tensor, Tensor]:
    """Returns scale and least value (blocks, 8) of each 32 values: numbers of 6 bits in twelve bytes, times two halves.

    Four of each lie in the lower 6 bits of a byte; of the others four bits in a byte for two, and two above those.
    """
    first, second, third = block[:, 4:8], block[:, 8:12], block[:, 12:16]
    scales = torch.cat([first & 63, (third & 15) | (first >> 6 << 4)], dim=1)
    least = torch.cat([second & 63, (third >> 4) | (second >> 6 << 4)], dim=1)
    return _half(block, 0) * scales, _half(block, 2) * least


def _times_and_less(values: Tensor, scale: Tensor, least: Tensor) -> Tensor:
    """values (blocks, groups, n) * scale - least, the latter two (blocks, groups) -> (blocks, groups * n)."""
    return values.mul_(scale.unsqueeze(2)).sub_(least.unsqueeze(2)).flatten(1)


BLOCKS = {
    "Q4_0": BlockLayout(32, 18, (0,), _q4_0),
    "Q4_1": BlockLayout(32, 20, (0, 2), _q4_1),
    "Q5_0": BlockLayout(32, 22, (0,), _q5_0),
    "Q5_1": BlockLayout(32, 24, (0, 2), _q5_1),
    "Q8_0": BlockLayout(32, 34, (0,), _q8_0),
    "Q2_K": BlockLayout(256, 84, (80, 82), _q2_k),
    "Q3_K": BlockLayout(256, 110, (108,), _q3_k),
    "Q4_K": BlockLayout(256, 144, (0, 2), _q4_k),
    "Q5_K": BlockLayout(256, 176, (0, 2), _q5_k),
    "Q6_K": BlockLayout(256, 210, (208,), _q6_k),
}
"""by the names GGUF gives them"""
