"""Weights that ComfyUI stores as integers of a row whose values were rotated first ("convrot"), and their unpacking.

A row is cut into groups of 4, 16, 64, 256 or 1024 neighbours, each multiplied by a matrix of as many rows, of ones and
minus ones over the square root of their number. It is symmetric and its own inverse: the same rotation, of
activations, makes a product of both what it was before. A scale belongs to a whole row, so here the integers are
rotated back before they are scaled. Their sums are exact in float32 in any order, in TF32 and with bfloat16 factors
too; one rounding is left, and no device or piece of a weight gives other bits.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["GROUPS", "INTEGERS", "IntegerLayout", "integer_layout", "rotated", "unpack_integers", "value_to_a_byte"]

GROUPS = (4, 16, 64, 256, 1024)
"""values that can be rotated together: powers of 4, the largest that divides the width of a Wan"""
_FOUR = ((1, 1, 1, -1), (1, 1, -1, 1), (1, -1, 1, 1), (-1, 1, 1, 1))
"""the smallest of the matrices, times 2; each other one is its Kronecker product with itself"""


@dataclass(frozen=True)
class IntegerLayout:
    """One way to store the integers of a row."""

    bits: int
    """of each: 8, or 4 where two share a byte, the first in its lower half"""
    group: int
    """neighbours that were rotated together"""


def integer_layout(bits: int, group: int) -> str:
    """Returns the name of a layout in `INTEGERS`; of one that is not there too."""
    return f"INT{bits}_CONVROT_{group}"


INTEGERS = {integer_layout(bits, group): IntegerLayout(bits, group) for bits in (8, 4) for group in GROUPS}


def unpack_integers(packed: Tensor, layout: str) -> Tensor:
    """Rows (out, bytes) int8 as (out, in) float32, rotated back and not yet scaled; exact."""
    if INTEGERS[layout].bits == 8:
        return rotated(packed.to(torch.float32), layout)
    pairs = torch.nn.functional.embedding(packed.view(torch.uint8).to(torch.int32), _pairs(packed.device))
    return rotated(pairs.view(packed.shape[0], -1), layout)


def rotated(values: Tensor, layout: str) -> Tensor:
    """values (..., in) float32 in the basis of a weight of that layout, or from it back; unchanged in any other one."""
    if layout not in INTEGERS:
        return values
    group = INTEGERS[layout].group
    return (values.reshape(-1, group) @ _matrix(group, values.device)).view(values.shape)


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
def _pairs(device: torch.device) -> Tensor:
    """Returns (256, 2) float32: the two signed numbers of 4 bits in each byte, -8 to 7."""
    byte = torch.arange(256, device=device)
    halves = torch.stack([byte & 15, byte >> 4], dim=1)
    return torch.where(halves < 8, halves, halves - 16).to(torch.float32)
