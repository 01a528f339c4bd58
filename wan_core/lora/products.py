"""LoKr, LoHa and OFT: changes of a linear that are not one pair of matrices.

LoKr: a Kronecker product of two small matrices, the second possibly low-rank. LoHa: the elementwise product of two
low-rank matrices. OFT: a rotation of the linear's output. Formulas and first values follow LyCORIS, which ComfyUI
reads.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from ..kernels import without_autocast
from .changes import Hadamard, Kronecker, Turned, turned
from .config import LoraConfig
from .linear_adapter import AdaptedLinear, LinearAdapter
from .low_rank import gaussian
from .module_adapter import Weight, named

_FIRST, _SECOND, _TALL, _WIDE = "lokr_w1", "lokr_w2", "lokr_w2_a", "lokr_w2_b"
_LOHA = Hadamard.parts
_SKEW = "oft_R.weight"


class LokrAdapter(LinearAdapter):
    """W + scale * kron(w1, w2). w2 = w2_a @ w2_b, or one matrix where the rank is at least half its size."""

    @staticmethod
    def layer_parts(linear: nn.Linear, config: LoraConfig, rank: int) -> dict[str, nn.Module]:
        (wide1, wide2), (tall1, tall2) = (
            _two_factors(size, config.lokr_factor) for size in (linear.in_features, linear.out_features)
        )
        first = {_FIRST: named((tall1, wide1))}
        if 2 * rank >= max(tall2, wide2):
            return first | {_SECOND: named((tall2, wide2))}
        return first | {_TALL: named((tall2, rank)), _WIDE: named((rank, wide2))}

    def __init__(self, name: str, layer: AdaptedLinear, config: LoraConfig, **more: Any) -> None:
        super().__init__(name, layer, config, **more)
        self.parts = (_FIRST, _SECOND) if self._is_whole else (_FIRST, _TALL, _WIDE)

    @property
    def _is_whole(self) -> bool:
        return hasattr(self.layer, _SECOND)

    @property
    def scale(self) -> float:
        """alpha / rank; 1 for two complete matrices, as in LyCORIS and ComfyUI."""
        return 1.0 if self._is_whole else self.alpha / self.rank

    @property
    def multiplies(self) -> int:
        tall, wide = self.parameter(_FIRST).shape
        if self._is_whole:
            rows, columns = self.parameter(_SECOND).shape
            return wide * rows * columns + tall * wide * rows
        rows, columns = self.parameter(_TALL).numel(), self.parameter(_WIDE).numel()
        return tall * rows + wide * columns + tall * wide * self.rank

    def start(self, seed: int) -> None:
        """w1 and w2_a are Kaiming-uniform with a = sqrt(5); w2 or w2_b is zero."""
        self.begin(_FIRST, seed, 1 / math.sqrt(self.parameter(_FIRST).shape[1]))
        if self._is_whole:
            self.begin(_SECOND, seed, None)
        else:
            self.begin(_TALL, seed, 1 / math.sqrt(self.rank))
            self.begin(_WIDE, seed, None)

    def change(self, x: Tensor, base: Tensor) -> Tensor:
        # The input as a matrix (..., m, n) is multiplied by w2 on its rows and w1 on its columns; kron(w1, w2) is never
        # built.
        inside = self.compute_dtype(x)
        first = self.parameter(_FIRST).to(inside)
        second = self.parameter(self.parts[-1]).to(inside)
        columns = self.dropped(x.to(inside)).unflatten(-1, (first.shape[1], second.shape[1]))
        mixed = functional.linear(functional.linear(columns, second).transpose(-1, -2), first).transpose(-1, -2)
        if not self._is_whole:
            mixed = functional.linear(mixed, self.parameter(_TALL).to(inside))
        added = mixed.flatten(-2)
        if (kept := self.kept(added.shape[-1])) is not None:
            added = added * kept.to(inside)
        return torch.add(base, added.to(base.dtype), alpha=self.scale * self.strength)

    def learnt(self) -> Kronecker:
        return Kronecker.of({part: self.parameter(part) for part in self.parts}, self.scale)

    def exported(self) -> dict[str, Tensor]:
        # Readers compute alpha / rank; with alpha = rank two complete matrices keep their scale of 1.
        found = super().exported()
        return found | {"alpha": torch.tensor(float(self.rank))} if self._is_whole else found


class LohaAdapter(LinearAdapter):
    """W + scale * (w1_a @ w1_b) * (w2_a @ w2_b): two matrix products, multiplied elementwise."""

    parts = _LOHA

    @staticmethod
    def layer_parts(linear: nn.Linear, config: LoraConfig, rank: int) -> dict[str, nn.Module]:
        tall, wide = (linear.out_features, rank), (rank, linear.in_features)
        return {part: named(size) for part, size in zip(_LOHA, (tall, wide, tall, wide), strict=True)}

    @property
    def multiplies(self) -> int:
        return self.base.in_features * self.base.out_features

    def start(self, seed: int) -> None:
        """Normal values of deviation 0.1 (w1_a) and 1; w2_a is zero."""
        for part, deviation in zip(_LOHA, (0.1, 1.0, None, 1.0), strict=True):
            shape, device = self.parameter(part).shape, self.base.weight.device
            if device.type == "meta" or deviation is None:
                self.set_values(part, torch.zeros(shape, device=device))
            else:
                self.set_values(part, gaussian(shape, deviation, seed, f"{self.name}.{part}"))

    def change(self, x: Tensor, base: Tensor) -> Tensor:
        inside = self.compute_dtype(x)
        factors = [self.parameter(part) for part in _LOHA]
        added = _LohaProduct.apply(self.dropped(x.to(inside)), *factors)
        if (kept := self.kept(added.shape[-1])) is not None:
            added = added * kept.to(inside)
        return torch.add(base, added.to(base.dtype), alpha=self.scale * self.strength)

    def learnt(self) -> Hadamard:
        return Hadamard(*(self.parameter(part) for part in _LOHA), scale=self.scale)


class OftAdapter(LinearAdapter):
    """R @ W with orthogonal R (`Turned`): outputs are rotated in blocks of `rank`; the bias is not rotated."""

    parts = (_SKEW,)
    reads_output = True

    @staticmethod
    def layer_parts(linear: nn.Linear, config: LoraConfig, rank: int) -> dict[str, nn.Module]:
        """PEFT rotates inputs, ComfyUI outputs, so the part has the size of PEFT's part for the transposed linear."""
        return {_SKEW.partition(".")[0]: named(Weight((linear.out_features // rank, rank * (rank - 1) // 2)))}

    @staticmethod
    def rank_for(linear: nn.Linear, rank: int) -> int:
        """Returns the largest divisor of the outputs that is at most `rank`."""
        return max(size for size in range(1, rank + 1) if linear.out_features % size == 0)

    @property
    def multiplies(self) -> int:
        return self.base.out_features * self.rank

    def start(self, seed: int) -> None:
        self.begin(_SKEW, seed, None)

    def learnt(self) -> Turned:
        return Turned(self.parameter(_SKEW), self.rank)

    def change(self, x: Tensor, base: Tensor) -> Tensor:
        inside = self.compute_dtype(x)
        difference = self.learnt().turns() - torch.eye(self.rank, device=base.device)
        if (kept := self.kept(len(difference))) is not None:
            difference = difference * (kept > 0)[:, None, None]
        added = turned(self.without_bias(base).to(inside), difference.to(inside))
        # ComfyUI's loader applies the strength twice.
        return torch.add(base, added.to(base.dtype), alpha=self.strength**2)

    def exported(self) -> dict[str, Tensor]:
        """Returns oft_blocks (k, n, n), without an alpha, by which readers would bound Q."""
        with torch.no_grad():
            return {"oft_blocks": self.learnt().blocks()}


def _two_factors(size: int, wanted: int) -> tuple[int, int]:
    """Returns two factors of `size`, as LyCORIS and PEFT choose them.

    If `wanted` divides `size`, it is one factor. Otherwise the factors are as equal as possible, and the smaller one is
    at most `wanted` (0: no limit).
    """
    if wanted and size % wanted == 0:
        return wanted, size // wanted
    smaller = max(n for n in range(1, math.isqrt(size) + 1) if size % n == 0 and n <= (wanted or size))
    return smaller, size // smaller


class _LohaProduct(torch.autograd.Function):
    """x (..., in) -> x @ change.T (..., out) without the scale; backward recomputes the change, as large as W."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *factors: Tensor) -> Tensor:
        ctx.save_for_backward(x, *factors)
        return functional.linear(x, Hadamard(*factors).unscaled().to(x.dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (gradient,) = gradients
        return without_autocast(gradient.device.type, _gradients, gradient, *ctx.saved_tensors)


def _gradients(gradient: Tensor, x: Tensor, *factors: Tensor) -> tuple[Tensor, ...]:
    tall1, wide1, tall2, wide2 = factors
    first, second = tall1 @ wide1, tall2 @ wide2
    of_x = gradient @ (first * second).to(gradient.dtype)
    of_change = (gradient.flatten(0, -2).T @ x.flatten(0, -2)).to(tall1.dtype)
    of_first = of_change * second
    del second
    of_second = of_change.mul_(first)
    return of_x, of_first @ wide1.T, tall1.T @ of_first, of_second @ wide2.T, tall2.T @ of_second
