"""The change of one weight in a LoRA file, one class per kind: parts, sizes, product, norm and best pair.

Shared by trained adapters, file readers, applied LoRAs and the check of a saved file. Shapes: (out, in) of the linear;
r the rank of a pair. `scale` is the factor its trainer applies.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from .factors import Factors, best_of_kronecker, best_pair

BIAS = "diff_b"
"""ComfyUI's name for the change of a bias"""
Sizes = Mapping[str, tuple[int, ...]]
"""part -> shape"""
Seen = Callable[[bool], tuple[Tensor, Tensor | None]]
"""function: True -> the bias (out,) of the base linear and the lengths (out,) of its weight's rows; False -> the bias,
None"""


@dataclass(frozen=True)
class Change:
    """The change of one linear's weight (out, in). DoRA and OFT depend on the weight and have no `delta`."""

    kind: ClassVar[str]
    parts: ClassVar[tuple[str, ...]]
    """parts in a file, in field order"""
    scaled: ClassVar[bool] = True
    """whether a file has an alpha for it"""
    ranked_by: ClassVar[tuple[str, ...]] = ()
    """parts whose number of rows is the rank; the first one that the file has is read"""
    scale: float = field(default=1.0, kw_only=True)

    @classmethod
    def of(cls, parts: Mapping[str, Tensor], scale: float) -> Change:
        """Builds the change from complete parts."""
        return cls(*(parts[part] for part in cls.parts), scale=scale)

    @classmethod
    def is_complete(cls, parts: frozenset[str]) -> bool:
        """Returns whether the parts, alpha excepted, are exactly one such change."""
        return parts == frozenset(cls.parts)

    @staticmethod
    def shape(sizes: Sizes) -> tuple[int, ...] | None:
        """Returns (out, in), or (out,) if the parts do not determine `in`; None for inconsistent parts."""
        raise NotImplementedError

    @classmethod
    def rank(cls, sizes: Sizes) -> int:
        """Returns the rank of a pair, the inner size of a LoHa or decomposed LoKr, else 0."""
        return next((sizes[part][0] for part in cls.ranked_by if part in sizes), 0)

    def norm(self) -> Tensor:
        """Returns the Frobenius norm () of the change; for a DoRA the norm of its pair, for an OFT the norm of Q."""
        raise NotImplementedError

    def delta(self) -> Tensor:
        """Returns the change (out, in)."""
        raise NotImplementedError

    def product(self, x: Tensor) -> Tensor:
        """x (..., in) -> (..., out)."""
        raise NotImplementedError

    def added(self, x: Tensor, y: Tensor, seen: Seen) -> Tensor:
        """Returns the change of the linear's output y (..., out) for its input x (..., in)."""
        return self.product(x)

    def factors(self, rank: int) -> Factors:
        """Returns the best pair of at most `rank`."""
        raise NotImplementedError


@dataclass(frozen=True)
class LowRank(Change):
    """LoRA and rsLoRA: scale * up @ down."""

    kind, parts, ranked_by = "LoRA", ("down", "up"), ("down",)
    down: Tensor
    up: Tensor

    @staticmethod
    def shape(sizes: Sizes) -> tuple[int, ...] | None:
        (inner, wide), (tall, other) = sizes["down"], sizes["up"]
        return (tall, wide) if inner == other else None

    def norm(self) -> Tensor:
        # By Gram matrices, which are r x r: |B A|^2 = sum((B^T B) * (A A^T)).
        square = ((self.up.T @ self.up) * (self.down @ self.down.T)).sum()
        return abs(self.scale) * square.clamp(min=0).sqrt()

    def delta(self) -> Tensor:
        return self.scale * (self.up @ self.down)

    def product(self, x: Tensor) -> Tensor:
        return functional.linear(_times(functional.linear(x, self.down), self.scale), self.up)

    def factors(self, rank: int) -> Factors:
        """Returns the pair unchanged; `rank` must not be below its own."""
        assert self.down.shape[0] <= rank
        return Factors(self.down, self.up * self.scale, 0.0, 0.0)


@dataclass(frozen=True)
class Rescaled(LowRank):
    """DoRA as ComfyUI reads it: W + scale * up @ down, each row times dora_scale / length of that row of W."""

    kind, parts = "DoRA", ("down", "up", "dora_scale")
    dora_scale: Tensor

    def added(self, x: Tensor, y: Tensor, seen: Seen) -> Tensor:
        bias, lengths = seen(True)
        assert lengths is not None
        ratio = self.dora_scale.to(x.device).float().flatten() / lengths
        return (ratio - 1).to(y.dtype) * (y - bias.to(y.dtype)) + ratio.to(y.dtype) * self.product(x)


@dataclass(frozen=True)
class Kronecker(Change):
    """LoKr: scale * kron(first, second). A file may store each matrix as a product `_a` @ `_b`."""

    kind, parts, ranked_by = "LoKr", ("lokr_w1", "lokr_w2"), ("lokr_w2_b", "lokr_w1_b")
    first: Tensor
    second: Tensor

    @classmethod
    def of(cls, parts: Mapping[str, Tensor], scale: float) -> Kronecker:
        first, second = (
            parts[name] if name in parts else parts[f"{name}_a"] @ parts[f"{name}_b"] for name in cls.parts
        )
        return cls(first, second, scale=scale)

    @classmethod
    def is_complete(cls, parts: frozenset[str]) -> bool:
        ways = (((name,), (f"{name}_a", f"{name}_b")) for name in cls.parts)
        return parts in {frozenset((*first, *second)) for first, second in itertools.product(*ways)}

    @staticmethod
    def shape(sizes: Sizes) -> tuple[int, ...] | None:
        made = {name: sizes.get(name) or LowRank.shape(_halves(sizes, name)) for name in Kronecker.parts}
        first, second = made.values()
        return (first[0] * second[0], first[1] * second[1]) if first and second else None

    def norm(self) -> Tensor:
        return abs(self.scale) * self.first.norm() * self.second.norm()

    def delta(self) -> Tensor:
        return self.scale * torch.kron(self.first, self.second)

    def product(self, x: Tensor) -> Tensor:
        """kron(first (a, c), second (b, d)) @ x, for x (..., c * d), without building the Kronecker product."""
        first = _times(self.first, self.scale)
        rows = x.unflatten(-1, (first.shape[1], self.second.shape[1]))
        return (first @ functional.linear(rows, self.second)).flatten(-2)

    def factors(self, rank: int) -> Factors:
        return best_of_kronecker(self.first, self.second, self.scale, rank)


@dataclass(frozen=True)
class Hadamard(Change):
    """LoHa: scale * (up1 @ down1) * (up2 @ down2), elementwise."""

    kind, parts, ranked_by = "LoHa", ("hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b"), ("hada_w1_b",)
    up1: Tensor
    down1: Tensor
    up2: Tensor
    down2: Tensor

    @staticmethod
    def shape(sizes: Sizes) -> tuple[int, ...] | None:
        (tall, r1), (r1_, wide), (tall_, r2), (r2_, wide_) = (sizes[part] for part in Hadamard.parts)
        return (tall, wide) if (r1, r2, tall, wide) == (r1_, r2_, tall_, wide_) else None

    def unscaled(self) -> Tensor:
        """Returns (out, in) without the scale."""
        return (self.up1 @ self.down1) * (self.up2 @ self.down2)

    def norm(self) -> Tensor:
        return abs(self.scale) * self.unscaled().norm()

    def delta(self) -> Tensor:
        return self.scale * (self.up1 @ self.down1) * (self.up2 @ self.down2)

    def product(self, x: Tensor) -> Tensor:
        """x (..., in) -> (..., out), by the pair of rank r1 * r2 if that is cheaper than the complete matrix."""
        if 2 * len(self.down1) * len(self.down2) >= min(self.up1.shape[0], self.down1.shape[1]):
            return functional.linear(x, self.unscaled() * self.scale)
        return LowRank(*self._as_one_rank(), scale=self.scale).product(x)

    def factors(self, rank: int) -> Factors:
        if self.down1.shape[0] * self.down2.shape[0] >= min(self.up1.shape[0], self.down1.shape[1]):
            return best_pair(rank, self.delta())
        down, up = self._as_one_rank()
        return best_pair(rank, up, down * self.scale)

    def _as_one_rank(self) -> tuple[Tensor, Tensor]:
        """Returns (r1 * r2, in) and (out, r1 * r2): second @ first is the change without its scale."""
        down = torch.einsum("ib,jb->ijb", self.down1, self.down2).flatten(0, 1)
        return down, torch.einsum("ai,aj->aij", self.up1, self.up2).flatten(1)


@dataclass(frozen=True)
class Turned(Change):
    """OFT: outputs in k blocks of n, rotated by R = (I - Q) (I + Q)^-1 with skew-symmetric Q."""

    kind, parts, scaled = "OFT", ("oft_blocks",), False
    upper: Tensor
    """(k, n * (n - 1) / 2): Q above its diagonal, row by row, as in PEFT"""
    size: int
    """n"""

    @classmethod
    def of(cls, parts: Mapping[str, Tensor], scale: float) -> Turned:
        blocks = parts["oft_blocks"]
        size = blocks.shape[1]
        rows, columns = torch.triu_indices(size, size, 1, device=blocks.device)
        return cls((blocks - blocks.transpose(1, 2))[:, rows, columns], size)

    @staticmethod
    def shape(sizes: Sizes) -> tuple[int, ...] | None:
        return (math.prod(sizes["oft_blocks"][:2]),)

    def blocks(self) -> Tensor:
        """Returns a file's oft_blocks (k, n, n); Q is these blocks minus their transposes."""
        rows, columns = torch.triu_indices(self.size, self.size, 1, device=self.upper.device)
        count = torch.arange(len(self.upper), device=self.upper.device)
        matrix = self.upper.new_zeros(len(self.upper), self.size, self.size)
        return matrix.index_put((count[:, None], rows, columns), self.upper)

    def turns(self) -> Tensor:
        """Returns the transposes of R (k, n, n), for products from the right."""
        upper = self.blocks()
        skew = upper - upper.transpose(1, 2)
        unit = torch.eye(self.size, device=skew.device, dtype=skew.dtype)
        return torch.linalg.solve(unit - skew, unit + skew)

    def norm(self) -> Tensor:
        """Frobenius norm of all Q, which LyCORIS and ComfyUI bound."""
        return math.sqrt(2) * self.upper.norm()


def turned(outputs: Tensor, turns: Tensor) -> Tensor:
    """outputs (..., k * n) without bias, turns (k, n, n) of `Turned.turns` -> (..., k * n)."""
    blocks = outputs.unflatten(-1, (-1, turns.shape[1])).transpose(-2, -3)
    return torch.matmul(blocks, turns).transpose(-2, -3).flatten(-2)


@dataclass(frozen=True)
class Whole(Change):
    """The full change of a weight, or of a norm (D,)."""

    kind, parts, scaled = "difference", ("diff",), False
    values: Tensor

    @staticmethod
    def shape(sizes: Sizes) -> tuple[int, ...] | None:
        return sizes["diff"]

    def norm(self) -> Tensor:
        return self.values.norm()

    def product(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.values)


def change_of(parts: Iterable[str]) -> type[Change] | None:
    """Returns the class of the change with these parts, alpha excepted; None for no match."""
    held = frozenset(parts) - {"alpha"}
    return next((one for one in (LowRank, Rescaled, Kronecker, Hadamard, Turned, Whole) if one.is_complete(held)), None)


def scale_of(alpha: float | None, rank: int) -> float:
    """Returns alpha / rank; 1 where either is missing, as in ComfyUI."""
    return 1.0 if alpha is None or not rank else alpha / rank


def _times(values: Tensor, scale: float) -> Tensor:
    return values if scale == 1 else values * scale


def _halves(sizes: Sizes, name: str) -> Sizes:
    return {"up": sizes[f"{name}_a"], "down": sizes[f"{name}_b"]}
