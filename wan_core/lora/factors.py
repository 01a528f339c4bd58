"""The best low-rank pair of a weight change (truncated SVD) in float32, with the measured loss."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

_NOTHING = 1e-6
"""relative singular values below this are float32 rounding"""


class Factors(NamedTuple):
    """up @ down approximates the change within the rank."""

    down: Tensor
    """(r, in), r at most the requested rank"""
    up: Tensor
    """(out, r)"""
    total: float
    """squared Frobenius norm of the complete change"""
    lost: float
    """the part of `total` outside up @ down"""


def best_pair(rank: int, up: Tensor, down: Tensor | None = None) -> Factors:
    """Returns the best pair for up (out, n) @ down (n, in), or for `up` (out, in) alone."""
    if down is None:
        u, values, v = torch.linalg.svd(up, full_matrices=False)
    else:
        # QR of both factors comes first, so that the SVD runs on (n, n), and the product (out, in) is never built.
        left, left_core = torch.linalg.qr(up)
        right, right_core = torch.linalg.qr(down.T)
        u, values, v = torch.linalg.svd(left_core @ right_core.T, full_matrices=False)
        u, v = left @ u, v @ right.T
    keep = _worth_keeping(values, rank)
    return _balanced(u[:, :keep], values, v[:keep], keep)


EXACT_UP_TO = 1024
"""width up to which decompositions are exact, because their cost grows with the cube of the width"""
_MORE = 16


def range_of(weight: Tensor, rank: int, directions: torch.Generator) -> Tensor:
    """Returns (out, rank + 16): orthonormal, near the leading left directions, by eight power iterations."""
    drawn = torch.randn(weight.shape[1], rank + _MORE, generator=directions)
    found = torch.linalg.qr(weight @ drawn.to(weight.device)).Q
    for _ in range(8):
        found = torch.linalg.qr(weight @ torch.linalg.qr(weight.T @ found).Q).Q
    return found


def best_of_change(rank: int, change: Tensor, directions: torch.Generator) -> Factors:
    """Returns the best pair for a change (out, in); above a width of EXACT_UP_TO, an approximation of it."""
    if change.shape[0] > change.shape[1]:
        pair = best_of_change(rank, change.T, directions)
        return pair._replace(down=pair.up.T, up=pair.down.T)
    found = range_of(change, rank, directions) if len(change) > EXACT_UP_TO else None
    core = (change if found is None else found.T @ change).double()
    # LAPACK's SVD does not converge on some changes of a low rank; an eigenvalue decomposition always does.
    squares, vectors = torch.linalg.eigh(core @ core.T)
    values = squares.clamp(min=0).sqrt().flip(0)
    keep = _worth_keeping(values, rank)
    left = vectors.flip(1)[:, :keep].to(change.dtype)
    left, roots = left if found is None else found @ left, values[:keep].to(change.dtype).sqrt()
    down, up = (left.T @ change) / roots[:, None], left * roots
    total, lost = (float(part.double().square().sum()) for part in (change, change - up @ down))
    return Factors(down, up, total, lost)


def best_of_kronecker(first: Tensor, second: Tensor, scale: float, rank: int) -> Factors:
    """Returns the best pair for scale * kron(first, second)."""
    # The singular vectors of a Kronecker product are the products of the factors' singular vectors.
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
    """Returns how many of the descending singular values (n,) to keep."""
    # A direction that is zero in both factors has zero gradients, and would never train.
    return min(rank, int((values > values[0] * _NOTHING).sum()))


def _balanced(up: Tensor, values: Tensor, down: Tensor, keep: int) -> Factors:
    """Returns up (out, n), values (n,), down (n, in) as a pair, each side scaled by the root of the values."""
    roots = values[:keep].sqrt()
    squares = values.double() ** 2
    return Factors(down * roots[:, None], up * roots, float(squares.sum()), float(squares[keep:].sum()))
