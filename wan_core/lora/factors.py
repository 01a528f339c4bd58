"""The best pair of thin matrices for a change of a weight, in float32; what it leaves out is measured."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

_NOTHING = 1e-6
"""a singular value below this share of the largest is float32 rounding"""


class Factors(NamedTuple):
    """up @ down is the change of the weight, as far as the rank allows."""

    down: Tensor
    """(r, in), r at most the requested rank"""
    up: Tensor
    """(out, r)"""
    total: float
    """squared Frobenius norm of the complete change"""
    lost: float
    """the part of `total` that up @ down leaves out"""


def best_pair(rank: int, up: Tensor, down: Tensor | None = None) -> Factors:
    """Returns the best form of up (out, n) @ down (n, in), which is never made, or of `up` (out, in) alone."""
    if down is None:
        u, values, v = torch.linalg.svd(up, full_matrices=False)
    else:
        left, left_core = torch.linalg.qr(up)
        right, right_core = torch.linalg.qr(down.T)
        u, values, v = torch.linalg.svd(left_core @ right_core.T, full_matrices=False)
        u, v = left @ u, v @ right.T
    keep = _worth_keeping(values, rank)
    return _balanced(u[:, :keep], values, v[:keep], keep)


def best_of_kronecker(first: Tensor, second: Tensor, scale: float, rank: int) -> Factors:
    """Returns the best form of scale * kron(first, second): its singular vectors are products of the factors' own."""
    u1, s1, v1 = torch.linalg.svd(first, full_matrices=False)
    u2, s2, v2 = torch.linalg.svd(second, full_matrices=False)
    values, order = torch.outer(s1, s2).flatten().sort(descending=True)
    values = values * abs(scale)
    keep = _worth_keeping(values, rank)
    i, j = order[:keep] // len(s2), order[:keep] % len(s2)
    up = torch.einsum("ak,bk->abk", u1[:, i], u2[:, j]).flatten(0, 1)
    down = torch.einsum("ka,kb->kab", v1[i], v2[j]).flatten(1, 2)
    return _balanced(up if scale >= 0 else -up, values, down, keep)


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
