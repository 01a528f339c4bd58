"""OFT: a change that turns what a linear puts out, in blocks of outputs, and keeps all lengths and angles.

The linear is (out, in), its outputs are k blocks of n. Each block is multiplied with an orthogonal matrix, by Cayley's
formula from a skew one: R = (I - Q) (I + Q)^-1, with Q begun at zero. The bias is not turned: R @ W is a weight.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from .config import LoraConfig
from .linear_adapter import LinearAdapter
from .module_adapter import Weight, named

_SKEW = "oft_R.weight"


class OftAdapter(LinearAdapter):
    """Turned outputs, in blocks as large as the rank, or the next smaller number that divides them."""

    parts = (_SKEW,)

    @staticmethod
    def layer_parts(linear: nn.Linear, config: LoraConfig, rank: int) -> dict[str, nn.Module]:
        """PEFT turns inputs; what ComfyUI reads turns outputs. So it is sized for the linear transposed."""
        return {_SKEW.partition(".")[0]: named(Weight((linear.out_features // rank, rank * (rank - 1) // 2)))}

    @staticmethod
    def rank_for(linear: nn.Linear, rank: int) -> int:
        """Returns the largest block of at most `rank` outputs."""
        return max(size for size in range(1, rank + 1) if linear.out_features % size == 0)

    @property
    def multiplies(self) -> int:
        return self.base.out_features * self.rank

    def start(self, seed: int) -> None:
        self.begin(_SKEW, seed, None)

    def _skew(self) -> Tensor:
        """Returns Q (k, n, n), the negative of its transpose."""
        upper = _upper(self.parameter(_SKEW), self.rank)
        return upper - upper.transpose(1, 2)

    def turn(self) -> Tensor:
        """Returns the transposes of R (k, n, n), float32: rows of outputs are multiplied with them from the right."""
        skew = self._skew()
        unit = torch.eye(self.rank, device=skew.device, dtype=skew.dtype)
        return torch.linalg.solve(unit - skew, unit + skew)

    def change(self, x: Tensor, base: Tensor) -> Tensor:
        """At another strength s than 1 the change counts s * s times, as in ComfyUI's loader."""
        inside = self.compute_dtype(x)
        difference = self.turn() - torch.eye(self.rank, device=base.device)
        if (kept := self.kept(len(difference))) is not None:
            difference = difference * (kept > 0)[:, None, None]
        blocks = self.without_bias(base).to(inside).unflatten(-1, (-1, self.rank)).transpose(-2, -3)
        turned = torch.matmul(blocks, difference.to(inside)).transpose(-2, -3).flatten(-2)
        return torch.add(base, turned.to(base.dtype), alpha=self.strength**2)

    def unread(self, x: Tensor) -> Tensor:
        """Computes it: the gradient of a rotation needs what is turned."""
        return self.forward(x)

    def exported(self) -> dict[str, Tensor]:
        """Returns oft_blocks (k, n, n), whose difference from their transposes is Q. No alpha: it would bound Q."""
        return {"oft_blocks": _upper(self.parameter(_SKEW).detach(), self.rank)}

    def norm(self) -> Tensor:
        """The Frobenius norm of all Q of the linear, as LyCORIS and ComfyUI bound it."""
        return math.sqrt(2) * self.parameter(_SKEW).norm()

    def shrink(self, ratio: Tensor) -> None:
        self.parameter(_SKEW).mul_(ratio)


def _upper(values: Tensor, size: int) -> Tensor:
    """Returns (k, n, n) with `values` (k, n * (n - 1) / 2) above the diagonal, row by row as PEFT has them."""
    rows, columns = torch.triu_indices(size, size, 1, device=values.device)
    matrix = values.new_zeros(len(values), size, size)
    return matrix.index_put((torch.arange(len(values), device=values.device)[:, None], rows, columns), values)
