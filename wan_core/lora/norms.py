"""Norms with a trained change of their scale, (D,), and for LayerNorms of their shift.

In a file, as in ComfyUI, they are `diff` and `diff_b`: differences added to the weight and the bias.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import torch
from torch import Tensor, nn

from ..kernels import rms_norm
from ..model import block_of
from ..model.attention import WanRMSNorm
from .changes import BIAS
from .config import LoraConfig
from .module_adapter import ModuleAdapter

_SCALE = "diff"
"""ComfyUI's name for the change of a scale"""


class NormAdapter(ModuleAdapter):
    """Adapts the scale of one norm, and the shift of a LayerNorm."""

    def __init__(self, name: str, norm: nn.Module, config: LoraConfig) -> None:
        super().__init__(name, _Norm(norm), config)
        self.parts = (_SCALE, BIAS) if isinstance(norm, nn.LayerNorm) else (_SCALE,)
        for part in self.parts:
            setattr(self.layer, part, nn.Parameter(torch.zeros_like(cast(Tensor, norm.weight), dtype=torch.float32)))

    def changed(self, base: Tensor, part: str) -> Tensor:
        """Returns the current scale or shift (D,) for the frozen `base`: float32, or `base` itself where bypassed."""
        return base if self.bypassed else torch.add(base.float(), self.parameter(part), alpha=self.strength)

    def in_file(self) -> dict[str, Tensor]:
        return {part: self.parameter(part).detach() for part in self.parts}

    def norm(self) -> Tensor:
        return torch.stack([self.parameter(part).norm() for part in self.parts]).norm()

    def shrink(self, ratio: Tensor) -> None:
        for part in self.parts:
            self.parameter(part).mul_(ratio)


class _Norm(nn.Module):
    """Replaces a norm, with the same scale, shift and call."""

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
        """RMS norm; blocks compute their LayerNorms from weight and bias themselves."""
        return rms_norm(x, self.weight, self.eps, dtype)


def norms_beside(model: nn.Module, linears: Iterable[str]) -> dict[str, nn.Module]:
    """Returns the norms with a scale in every block that has one of the linears, by name, in model order."""
    blocks = {(found.stream, found.number) for name in linears if (found := block_of(name))}
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.LayerNorm | WanRMSNorm)
        and (found := block_of(name))
        and (found.stream, found.number) in blocks
    }
