"""Norms with a trained scale: the frozen one, and beside it what is learnt, (D,) each. LayerNorms have a shift too.

ComfyUI knows both as `diff` and `diff_b`: whole differences, added to the weight and the bias of the model.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import torch
from torch import Tensor, nn

from ..model import block_of
from ..model.attention import WanRMSNorm
from ..model.modulate import rms_norm
from .changes import BIAS
from .config import LoraConfig
from .module_adapter import ModuleAdapter

_SCALE = "diff"
"""the trained change of a scale, as ComfyUI calls it"""


class NormAdapter(ModuleAdapter):
    """Adds to the scale of one norm, and to the shift of a LayerNorm."""

    def __init__(self, name: str, norm: nn.Module, config: LoraConfig) -> None:
        super().__init__(name, _Norm(norm), config)
        self.parts = (_SCALE, BIAS) if isinstance(norm, nn.LayerNorm) else (_SCALE,)
        for part in self.parts:
            setattr(self.layer, part, nn.Parameter(torch.zeros_like(cast(Tensor, norm.weight), dtype=torch.float32)))

    def changed(self, base: Tensor, part: str) -> Tensor:
        """Returns the scale or shift (D,) that counts now, where the frozen one is `base`: float32, or the base's."""
        return base if self.bypassed else torch.add(base.float(), self.parameter(part), alpha=self.strength)

    def in_file(self) -> dict[str, Tensor]:
        return {part: self.parameter(part).detach() for part in self.parts}

    def norm(self) -> Tensor:
        return torch.stack([self.parameter(part).norm() for part in self.parts]).norm()

    def shrink(self, ratio: Tensor) -> None:
        for part in self.parts:
            self.parameter(part).mul_(ratio)


class _Norm(nn.Module):
    """Stands in the place of a norm: the same to whoever reads its scale and shift, or calls it."""

    adapter: NormAdapter

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.base_layer = norm
        self.eps = cast(float, norm.eps)
        self.normalized_shape = tuple(cast(Tensor, norm.weight).shape)

    @property
    def weight(self) -> Tensor:
        return self.adapter.changed(cast(Tensor, self.base_layer.weight), _SCALE)

    @property
    def bias(self) -> Tensor:
        return self.adapter.changed(cast(Tensor, self.base_layer.bias), BIAS)

    def forward(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """Does what an RMS norm does; a LayerNorm of a block is only read."""
        return rms_norm(x, self.weight, self.eps, dtype)


def norms_beside(model: nn.Module, linears: Iterable[str]) -> dict[str, nn.Module]:
    """Returns the norms with a scale in the blocks that have one of those linears, by name, in model order."""
    blocks = {(found.stream, found.number) for name in linears if (found := block_of(name))}
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.LayerNorm | WanRMSNorm)
        and (found := block_of(name))
        and (found.stream, found.number) in blocks
    }
