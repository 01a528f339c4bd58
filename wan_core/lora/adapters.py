"""Turns what a LoRA file holds for one linear into the exact change of its weight, and a change into a pair.

Shapes: (out, in) of the linear; r the rank of a pair. Everything is float32; `scale` is the factor its trainer applies.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

_NOTHING = 1e-6
"""a singular value below this share of the largest is float32 rounding"""


class Factors(NamedTuple):
    """up @ down is the change of the weight, as far as the rank allows."""

    down: Tensor
    """(r, in), r at most the rank asked for"""
    up: Tensor
    """(out, r)"""
    total: float
    """squared Frobenius norm of the whole change"""
    lost: float
    """the part of `total` that up @ down leaves out"""


@dataclass(frozen=True)
class LowRank:
    """A plain LoRA pair: scale * up @ down."""

    down: Tensor
    up: Tensor
    scale: float

    def delta(self) -> Tensor:
        """(out, in)"""
        return self.scale * (self.up @ self.down)

    def norm(self) -> float:
        """The Frobenius norm of the change, by products of each factor with itself: no matrix is larger than r."""
        square = float(((self.up.T @ self.up) * (self.down @ self.down.T)).sum())
        return abs(self.scale) * math.sqrt(max(0.0, square))

    def factors(self, rank: int) -> Factors:
        """Returns the pair as it is: nothing is lost. `rank` must not be below its own."""
        assert self.down.shape[0] <= rank
        return Factors(self.down, self.up * self.scale, 0.0, 0.0)


@dataclass(frozen=True)
class Kronecker:
    """LoKr: scale * kron(first, second)."""

    first: Tensor
    second: Tensor
    scale: float

    def delta(self) -> Tensor:
        """(out, in)"""
        return self.scale * torch.kron(self.first, self.second)

    def norm(self) -> float:
        """The Frobenius norm of the change: that of a Kronecker product is the product of the norms."""
        return abs(self.scale) * float(self.first.norm() * self.second.norm())

    def factors(self, rank: int) -> Factors:
        """The best rank-`rank` form. Singular vectors of a Kronecker product are the products of its factors' own."""
        u1, s1, v1 = torch.linalg.svd(self.first, full_matrices=False)
        u2, s2, v2 = torch.linalg.svd(self.second, full_matrices=False)
        values, order = torch.outer(s1, s2).flatten().sort(descending=True)
        values = values * abs(self.scale)
        keep = _worth_keeping(values, rank)
        i, j = order[:keep] // len(s2), order[:keep] % len(s2)
        up = torch.einsum("ak,bk->abk", u1[:, i], u2[:, j]).flatten(0, 1)
        down = torch.einsum("ka,kb->kab", v1[i], v2[j]).flatten(1, 2)
        return _balanced(up if self.scale >= 0 else -up, values, down, keep)


@dataclass(frozen=True)
class Hadamard:
    """LoHa: scale * (up1 @ down1) * (up2 @ down2), elementwise."""

    down1: Tensor
    up1: Tensor
    down2: Tensor
    up2: Tensor
    scale: float

    def delta(self) -> Tensor:
        """(out, in)"""
        return self.scale * (self.up1 @ self.down1) * (self.up2 @ self.down2)

    def norm(self) -> float:
        """The Frobenius norm of the change."""
        return float(self.delta().norm())

    def factors(self, rank: int) -> Factors:
        """The best rank-`rank` form, without the whole matrix where the product of both ranks is small."""
        inner = self.down1.shape[0] * self.down2.shape[0]
        if inner >= min(self.up1.shape[0], self.down1.shape[1]):
            u, values, v = torch.linalg.svd(self.delta(), full_matrices=False)
        else:
            wide = torch.einsum("ai,aj->aij", self.up1, self.up2).flatten(1)  # wide @ flat is the product
            flat = torch.einsum("ib,jb->ijb", self.down1, self.down2).flatten(0, 1) * self.scale
            left, left_core = torch.linalg.qr(wide)
            right, right_core = torch.linalg.qr(flat.T)
            u, values, v = torch.linalg.svd(left_core @ right_core.T, full_matrices=False)
            u, v = left @ u, v @ right.T
        keep = _worth_keeping(values, rank)
        return _balanced(u[:, :keep], values, v[:keep], keep)


Adapter = LowRank | Kronecker | Hadamard


def _worth_keeping(values: Tensor, rank: int) -> int:
    """Returns how many of the falling singular values (n,) to keep.

    A direction that is zero on both sides would never learn.
    """
    return min(rank, int((values > values[0] * _NOTHING).sum()))


def _balanced(up: Tensor, values: Tensor, down: Tensor, keep: int) -> Factors:
    """Returns up (out, n), values (n,) and down (n, in) as a pair.

    Both sides get the root of the singular values, as if they had been trained together.
    """
    roots = values[:keep].sqrt()
    squares = values.double() ** 2
    return Factors(down * roots[:, None], up * roots, float(squares.sum()), float(squares[keep:].sum()))
