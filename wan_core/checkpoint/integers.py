"""Weights that ComfyUI stores as integers of a row whose values were rotated first ("convrot"), and their unpacking.

A row is cut into groups of 4, 16, 64, 256 or 1024 neighbours, each multiplied by a matrix of as many rows, of ones and
minus ones over the square root of their number. It is symmetric and its own inverse: the same rotation, of
activations, makes a product of both what it was before. A scale belongs to a whole row, so here the integers are
rotated back before they are scaled. Their sums are exact in float32 in any order, in TF32 and with bfloat16 factors
too; one rounding is left, and no device or piece of a weight gives other bits.

In asym_w4a8_int8 a row holds codes of 4 or 6 bits instead, for sixteen of them a float8 scale, and a weight a table of
sixteen levels: level times scale, rounded, is the integer. Its scales follow the codes of a row here.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from ..model.autocast import without_autocast

SCALED_TOGETHER = 16
"""codes that share a float8 scale"""
GROUPS = (4, 16, 64, 256, 1024)
"""values that can be rotated together: powers of 4, the largest that divides the width of a Wan"""
_FOUR = ((1, 1, 1, -1), (1, 1, -1, 1), (1, -1, 1, 1), (-1, 1, 1, 1))
"""the smallest of the matrices, times 2; each other one is its Kronecker product with itself"""


@dataclass(frozen=True)
class IntegerLayout:
    """One way to store the integers of a row."""

    bits: int
    """of each: 8, or 4 where two share a byte, the first in its lower half; of codes also 6, see `_six_bits`"""
    group: int
    """neighbours that were rotated together"""
    coded: bool = False
    """whether they are codes, with their scales after them"""

    def row_bytes(self, values: int) -> int:
        """Returns the bytes of a row of so many values."""
        return values * self.bits // 8 + (values // SCALED_TOGETHER if self.coded else 0)

    def row_values(self, size: int) -> int:
        """Returns how many values a row of so many bytes stands for."""
        return size * SCALED_TOGETHER // self.row_bytes(SCALED_TOGETHER)


def integer_layout(bits: int, group: int, *, coded: bool = False) -> str:
    """Returns the name of a layout in `INTEGERS`; of one that is not there too."""
    return f"W{bits}A8_CONVROT_{group}" if coded else f"INT{bits}_CONVROT_{group}"


INTEGERS = {
    integer_layout(bits, group, coded=coded): IntegerLayout(bits, group, coded)
    for bits, coded in ((8, False), (4, False), (4, True), (6, True))
    for group in GROUPS
}


def unpack_integers(packed: Tensor, layout: str, levels: Tensor | None = None) -> Tensor:
    """Rows (out, bytes) int8, or uint8 of codes, as (out, in) float32, rotated back and not yet scaled; exact.

    `levels` (16,) float32: what codes of 4 bits stand for; None: numbers at equal distance, as those of 6 bits are.
    """
    known = INTEGERS[layout]
    if known.coded:
        return rotated(_decoded(packed, known, levels), layout)
    return rotated(packed.to(torch.float32) if known.bits == 8 else _by_pairs(packed, _signed(packed.device)), layout)


def code_scales(packed: Tensor, layout: str) -> Tensor:
    """Returns the float8 scales (out, in / 16) that follow the codes of each row."""
    return packed[:, -(INTEGERS[layout].row_values(packed.shape[1]) // SCALED_TOGETHER) :].view(torch.float8_e4m3fn)


def _decoded(packed: Tensor, known: IntegerLayout, levels: Tensor | None) -> Tensor:
    """(out, bytes) uint8 -> (out, in) float32: integers of 8 bits, as the product of levels and scales is rounded."""
    rows, width = packed.shape[0], known.row_values(packed.shape[1])
    if known.bits == 6:
        values = _six_bits(packed, width).to(torch.float32).sub_(1 << 5)
    else:
        table = torch.arange(-8.0, 8.0, device=packed.device) if levels is None else levels.to(torch.float32)
        values = _by_pairs(packed[:, : width // 2], table)
    scales = packed[:, known.bits * width // 8 :].view(torch.float8_e4m3fn).to(torch.float32)
    values.view(rows, -1, SCALED_TOGETHER).mul_(scales.unsqueeze(2))
    return values.round_().clamp_(-127, 127)


def _by_pairs(packed: Tensor, table: Tensor) -> Tensor:
    """(out, bytes) -> (out, 2 bytes) float32: what `table` (16,) holds for each half of a byte, the lower one first."""
    byte = torch.arange(256, device=packed.device)
    pairs = torch.stack([table[byte & 15], table[byte >> 4]], dim=1)
    return torch.nn.functional.embedding(packed.view(torch.uint8).to(torch.int32), pairs).view(packed.shape[0], -1)


def _six_bits(packed: Tensor, width: int) -> Tensor:
    """(out, bytes) uint8 -> (out, width) uint8: first the lower four bits of all codes, then the upper two of each."""
    low, high = packed[:, : width // 2], packed[:, width // 2 : width * 3 // 4]
    shifts = torch.arange(0, 8, 2, dtype=torch.uint8, device=packed.device)
    upper = ((high.unsqueeze(2) >> shifts) & 3) << 4
    return torch.stack([low & 15, low >> 4], dim=2).flatten(1) | upper.flatten(1)


def rotated(values: Tensor, layout: str) -> Tensor:
    """values (..., in) float32 in the basis of a weight of that layout, or from it back; unchanged in any other one."""
    if layout not in INTEGERS:
        return values
    group = INTEGERS[layout].group
    groups = values.reshape(-1, group)
    return without_autocast(values.device.type, torch.mm, groups, _matrix(group, values.device)).view(values.shape)


def value_to_a_byte(layout: str) -> bool:
    """Returns whether the bytes of a weight are its values, or those before they are rotated back, but for scales."""
    return not layout or (layout in INTEGERS and INTEGERS[layout].bits == 8)


@functools.lru_cache(maxsize=16)
def _matrix(group: int, device: torch.device) -> Tensor:
    """Returns (group, group) float32."""
    four = torch.tensor(_FOUR, dtype=torch.float32, device=device) / 2
    whole = four
    while len(whole) < group:
        whole = torch.kron(whole, four)
    return whole


@functools.lru_cache(maxsize=16)
def _signed(device: torch.device) -> Tensor:
    """Returns (16,) float32: the signed numbers that 4 bits stand for."""
    return torch.tensor([*range(8), *range(-8, 0)], dtype=torch.float32, device=device)
