"""OFT: a change that turns what a linear puts out, in blocks of outputs, and keeps all lengths and angles.

The linear is (out, in), its outputs are k blocks of n. Each block is multiplied with an orthogonal matrix, made by
Cayley's formula (`Turned`) from a skew one that begins at zero. The bias is not turned: R @ W is a weight.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .changes import Turned, turned
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

    def learnt(self) -> Turned:
        return Turned(self.parameter(_SKEW), self.rank)

    def change(self, x: Tensor, base: Tensor) -> Tensor:
        """At another strength s than 1 the change counts s * s times, as in ComfyUI's loader."""
        inside = self.compute_dtype(x)
        difference = self.learnt().turns() - torch.eye(self.rank, device=base.device)
        if (kept := self.kept(len(difference))) is not None:
            difference = difference * (kept > 0)[:, None, None]
        added = turned(self.without_bias(base).to(inside), difference.to(inside))
        return torch.add(base, added.to(base.dtype), alpha=self.strength**2)

    def unread(self, x: Tensor) -> Tensor:
        """Computes it: the gradient of a rotation needs what is turned."""
        return self.forward(x)

    def exported(self) -> dict[str, Tensor]:
        """Returns oft_blocks (k, n, n). No alpha: it would bound Q."""
        with torch.no_grad():
            return {"oft_blocks": self.learnt().blocks()}
