"""GGUF blocks (32 or 256 values of a row with their scales, as ggml stores them) and their dequantization.

Layouts: the GGUF specification and ggml-common.h; scales are float16, bits are numbered from low to high. A value is
`integer * scale + offset` in float32, in ggml's order of operations. On a CPU it has the same bits as with the package
gguf; a GPU may round product and sum only once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


class Parts(NamedTuple):
    """A dequantized tensor in parts: values * scale + offset."""

    values: Tensor
    """(rows, groups, n) uint8, int8, or a float dtype that represents each value exactly"""
    scale: Tensor
    """(rows, groups, 1) float32, or a shape that broadcasts to it"""
    offset: Tensor | None = None


@dataclass(frozen=True)
class BlockLayout:
    values: int
    """consecutive values of a row in a block"""

    size_bytes: int
    scales: tuple[int, ...]
    """byte offsets of the float16 numbers: the scale, then the offset or the offset's scale"""

    parts: Callable[[Tensor], Parts]
    """(blocks, size_bytes) uint8 -> parts, with a row per block"""


def block_parts(stored: Tensor, kind: str) -> Parts:
    """Returns the parts of rows of complete blocks, (rows, bytes) uint8; `kind` is a key of `BLOCKS`."""
    layout = BLOCKS[kind]
    return layout.parts(stored.reshape(-1, layout.size_bytes))


def block_scales(stored: Tensor, kind: str) -> Tensor:
    """Returns the float16 scales (scales, blocks, 1) of all blocks; values are finite if the scales are."""
    layout = BLOCKS[kind]
    blocks = stored.reshape(-1, layout.size_bytes)
    return torch.stack([blocks[:, at : at + 2].contiguous().view(torch.float16) for at in layout.scales])


def table(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Returns a small constant tensor, built once per device."""
    if torch.compiler.is_compiling():  # becomes a constant of the compiled code
        return torch.tensor(values, dtype=dtype, device=device)
    kept = _tables.get((values, dtype, device))
    if kept is None:
        with torch.inference_mode(False):
            kept = torch.tensor(values, dtype=dtype, device=device)
        if type(kept) is Tensor:  # a FakeTensor must not outlive its mode
            _tables[values, dtype, device] = kept
    return kept


_tables: dict[tuple[tuple[float, ...], torch.dtype, torch.device], Tensor] = {}


def _half(block: Tensor, at: int) -> Tensor:
    """Returns the float16 number at byte `at` of each block, (blocks, 1, 1) float32."""
    return _halves(block, at, 1).to(torch.float32).unsqueeze(2)


def _halves(block: Tensor, at: int, count: int) -> Tensor:
    """Returns the float16 numbers from byte `at` of each block, (blocks, count)."""
    if not torch.compiler.is_compiling():
        return block[:, at : at + 2 * count].view(torch.float16)
    # The compiler fuses a view in another dtype only for equal element sizes.
    low, high = block[:, at : at + 2 * count].unflatten(1, (count, 2)).to(torch.int16).unbind(2)
    return (low | (high << 8)).view(torch.float16)


def _bits(stored: Tensor, width: int, dim: int) -> Tensor:
    """Returns the numbers of `width` bits in each byte, lowest first, along a new dimension `dim`."""
    shifts = table(tuple(range(0, 8, width)), torch.uint8, stored.device)
    shape = [1] * (stored.ndim + 1)
    shape[dim] = len(shifts)
    return (stored.unsqueeze(dim) >> shifts.view(shape)) & ((1 << width) - 1)


def _less(values: Tensor, middle: int) -> Tensor:
    """Returns `values - middle` as int8; `values`: uint8 below 128."""
    return values.view(torch.int8) - middle


def _nibbles(stored: Tensor) -> Tensor:
    """(blocks, n) -> (blocks, 1, 2 n): all lower halves, then all upper halves."""
    return _bits(stored, 4, 1).flatten(1).unsqueeze(1)


def _five_bits(stored: Tensor, high: Tensor) -> Tensor:
    return _nibbles(stored) | (_bits(high, 1, 2).flatten(1) << 4).unsqueeze(1)


def _q2_k(block: Tensor) -> Parts:
    values = _bits(block[:, 16:80].unflatten(1, (2, 32)), 2, 2).view(-1, 16, 16)
    scale, least = _bits(block[:, :16], 4, 1).unbind(1)
    return Parts(values, _half(block, 80) * scale.unsqueeze(2), -_half(block, 82) * least.unsqueeze(2))


def _q3_k(block: Tensor) -> Parts:
    low = _bits(block[:, 32:96].unflatten(1, (2, 32)), 2, 2).view(-1, 8, 32)
    values = _less(low | (_bits(block[:, :32], 1, 1) << 2), 4).view(-1, 16, 16)
    # Sixteen scales of 6 bits: the lower four bits in eight bytes, the upper two in four.
    scales = _bits(block[:, 96:104], 4, 1).flatten(1) | (_bits(block[:, 104:108], 2, 1).flatten(1) << 4)
    return Parts(values, _half(block, 108) * _less(scales, 32).unsqueeze(2))


def _q4_k(block: Tensor, begin: int = 16) -> Parts:
    values = _bits(block[:, begin:].unflatten(1, (4, 32)), 4, 2).view(-1, 8, 32)
    return Parts(values, *_scales_of_eight(block))


def _q5_k(block: Tensor) -> Parts:
    low = _q4_k(block, 48)
    return low._replace(values=low.values | (_bits(block[:, 16:48], 1, 1) << 4))


def _q6_k(block: Tensor) -> Parts:
    low = _bits(block[:, :128].unflatten(1, (2, 64)), 4, 2).view(-1, 8, 32)
    high = _bits(block[:, 128:192].unflatten(1, (2, 32)), 2, 2).view(-1, 8, 32)
    values = _less(low | (high << 4), 32).view(-1, 16, 16)
    return Parts(values, _half(block, 208) * block[:, 192:208].view(torch.int8).unsqueeze(2))


def _scales_of_eight(block: Tensor) -> tuple[Tensor, Tensor]:
    """Returns scale and offset (blocks, 8, 1) of the eight groups of 32 values: 6-bit numbers times two float16
    numbers.

    Twelve bytes contain eight numbers for the scales and eight for the offsets. The first four of each eight are the
    lower 6 bits of a byte. The last four have their lower 4 bits in a shared byte, and their upper 2 bits in the upper
    bits of the first four.
    """
    both, shared = block[:, 4:12].unflatten(1, (2, 4)), block[:, 12:16]
    numbers = torch.cat([both & 63, _bits(shared, 4, 1) | (both >> 2 & 48)], dim=2)  # (blocks, 2, 8)
    # The second sign is negative, because the format subtracts the offset.
    signs = table((1.0, -1.0), torch.float32, block.device)
    halves = _halves(block, 0, 2) * signs
    scale, offset = (halves.unsqueeze(2) * numbers).unsqueeze(3).unbind(1)
    return scale, offset


BLOCKS = {
    "Q4_0": BlockLayout(32, 18, (0,), lambda b: Parts(_less(_nibbles(b[:, 2:]), 8), _half(b, 0))),
    "Q4_1": BlockLayout(32, 20, (0, 2), lambda b: Parts(_nibbles(b[:, 4:]), _half(b, 0), _half(b, 2))),
    "Q5_0": BlockLayout(32, 22, (0,), lambda b: Parts(_less(_five_bits(b[:, 6:], b[:, 2:6]), 16), _half(b, 0))),
    "Q5_1": BlockLayout(32, 24, (0, 2), lambda b: Parts(_five_bits(b[:, 8:], b[:, 4:8]), _half(b, 0), _half(b, 2))),
    "Q8_0": BlockLayout(32, 34, (0,), lambda b: Parts(b[:, 2:].view(torch.int8).unsqueeze(1), _half(b, 0))),
    "Q2_K": BlockLayout(256, 84, (80, 82), _q2_k),
    "Q3_K": BlockLayout(256, 110, (108,), _q3_k),
    "Q4_K": BlockLayout(256, 144, (0, 2), _q4_k),
    "Q5_K": BlockLayout(256, 176, (0, 2), _q5_k),
    "Q6_K": BlockLayout(256, 210, (208,), _q6_k),
}
"""by their GGUF names"""
