"""ComfyUI's integer weights with rotated rows ("convrot"), and their dequantization.

A row is cut into groups of 4, 16, 64, 256 or 1024 values. Each group is multiplied by a Hadamard-like matrix: ones and
minus ones, divided by the square root of the group size. The matrix is symmetric and its own inverse, so a product with
activations that are rotated the same way is unchanged. One scale belongs to a complete row, so dequantization rotates
the integers back before it scales them. The sums of integers are exact in float32, in any order, also in TF32 and with
bfloat16 factors, so all devices give the same bits.

asym_w4a8_int8: a row has codes of 4 or 6 bits, and a float8 scale per sixteen codes; a weight has a table of sixteen
levels. The integer is the code's level times the scale, rounded. In memory, the scales follow the codes of a row.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from ..kernels import without_autocast

SCALED_TOGETHER = 16
"""number of codes per float8 scale"""
GROUPS = (4, 16, 64, 256, 1024)
"""group sizes: powers of 4, up to the largest that divides the width of a Wan model"""
_FOUR = ((1, 1, 1, -1), (1, 1, -1, 1), (1, -1, 1, 1), (-1, 1, 1, 1))
"""the smallest matrix times two; larger ones are its Kronecker powers"""


@dataclass(frozen=True)
class IntegerLayout:
    """The storage format of a row of integers."""

    bits: int
    """bits per value: 8, or 4 (two values per byte, lower half first); codes may have 6 (`six_bits`)"""

    group: int
    """values per rotation group"""

    coded: bool = False
    """True for codes (asym_w4a8_int8), with the scales stored after the codes of a row"""

    def row_bytes(self, values: int) -> int:
        """Returns the bytes of a row of `values` values."""
        return values * self.bits // 8 + (values // SCALED_TOGETHER if self.coded else 0)

    def row_values(self, size: int) -> int:
        """Returns the number of values in a row of `size` bytes."""
        return size * SCALED_TOGETHER // self.row_bytes(SCALED_TOGETHER)


def integer_layout(bits: int, group: int, *, coded: bool = False) -> str:
    """Returns the name of a layout, which need not be a key of `INTEGERS`."""
    return f"W{bits}A8_CONVROT_{group}" if coded else f"INT{bits}_CONVROT_{group}"


INTEGERS = {
    integer_layout(bits, group, coded=coded): IntegerLayout(bits, group, coded)
    for bits, coded in ((8, False), (4, False), (4, True), (6, True))
    for group in GROUPS
}


def unpack_integers(packed: Tensor, layout: str, levels: Tensor | None = None) -> Tensor:
    """Returns rows (out, bytes) of int8, or of uint8 codes, as exact integers (out, in) float32, rotated back,
    unscaled.

    `levels` (16,) float32: the levels of 4-bit codes; None: evenly spaced, as for 6-bit codes.
    """
    known = INTEGERS[layout]
    if known.coded:
        return rotated(_decoded(packed, known, levels), layout)
    if known.bits == 8:
        return rotated(packed.to(torch.float32), layout)
    signed = torch.arange(-8.0, 8.0, device=packed.device).roll(8)  # 0 to 7, then -8 to -1
    return rotated(_by_pairs(packed, signed), layout)


def code_scales(packed: Tensor, layout: str) -> Tensor:
    """Returns the float8 scales (out, in / 16) that follow the codes of each row."""
    return packed[:, -(INTEGERS[layout].row_values(packed.shape[1]) // SCALED_TOGETHER) :].view(torch.float8_e4m3fn)


def _decoded(packed: Tensor, known: IntegerLayout, levels: Tensor | None) -> Tensor:
    """(out, bytes) uint8 codes -> (out, in) float32 integers: levels times scales, rounded."""
    rows, width = packed.shape[0], known.row_values(packed.shape[1])
    if known.bits == 6:
        values = six_bits(packed, width).to(torch.float32).sub_(1 << 5)
    else:
        table = torch.arange(-8.0, 8.0, device=packed.device) if levels is None else levels.to(torch.float32)
        values = _by_pairs(packed[:, : width // 2], table)
    scales = packed[:, known.bits * width // 8 :].view(torch.float8_e4m3fn).to(torch.float32)
    values.view(rows, -1, SCALED_TOGETHER).mul_(scales.unsqueeze(2))
    return values.round_().clamp_(-127, 127)


def _by_pairs(packed: Tensor, table: Tensor) -> Tensor:
    """(out, bytes) -> (out, 2 * bytes) float32: the entry of `table` (16,) for each half of a byte, lower half
    first."""
    byte = torch.arange(256, device=packed.device)
    pairs = torch.stack([table[byte & 15], table[byte >> 4]], dim=1)
    return torch.nn.functional.embedding(packed.view(torch.uint8).to(torch.int32), pairs).view(packed.shape[0], -1)


def six_bits(packed: Tensor, width: int) -> Tensor:
    """(out, bytes) uint8 -> (out, width) uint8: the lower four bits of all codes come first, then the upper two."""
    low, high = packed[:, : width // 2], packed[:, width // 2 : width * 3 // 4]
    shifts = torch.arange(0, 8, 2, dtype=torch.uint8, device=packed.device)
    upper = ((high.unsqueeze(2) >> shifts) & 3) << 4
    return torch.stack([low & 15, low >> 4], dim=2).flatten(1) | upper.flatten(1)


def rotated(values: Tensor, layout: str) -> Tensor:
    """Returns values (..., in) float32 multiplied by the rotation, which is its own inverse; unchanged for layouts
    without rotation."""
    if layout not in INTEGERS:
        return values
    group = INTEGERS[layout].group
    groups = values.reshape(-1, group)
    return without_autocast(values.device.type, torch.mm, groups, _matrix(group, values.device)).view(values.shape)


def value_to_a_byte(layout: str) -> bool:
    """Returns whether each stored byte holds exactly one value."""
    return not layout or (layout in INTEGERS and INTEGERS[layout].bits == 8)


@functools.lru_cache(maxsize=16)
def _matrix(group: int, device: torch.device) -> Tensor:
    four = torch.tensor(_FOUR, dtype=torch.float32, device=device) / 2
    whole = four
    while len(whole) < group:
        whole = torch.kron(whole, four)
    return whole
