"""The trained part of one module of a frozen model: parameters, devices, file form."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, cast

import torch
from torch import Tensor, nn

from .config import LoraConfig

_NAME = "default"
"""PEFT's name for the only adapter of a layer, so that parameter names are the same as PEFT's"""


class ModuleAdapter(ABC):
    """Adapts one module; `inject_lora` replaces the module by `layer`. Parameters are float32."""

    parts: tuple[str, ...] = ()
    """parameter names after the module's name, such as lora_A.weight"""

    def __init__(self, name: str, layer: nn.Module, config: LoraConfig) -> None:
        """`layer`: replaces the module and holds it as `base_layer`."""
        self.name, self.layer, self.config = name, cast(Any, layer), config
        self.constants: dict[str, Tensor] = {}
        """untrained values that a resume needs, by part"""
        self.strength = 1.0
        """factor of the change while sampling: 1 for the trained adapter, 0 for the base model"""
        self.bypassed = False
        """whether the layer computes the base model bit-exactly (`without_adapters`)"""
        self.dtype: torch.dtype | None = None
        """compute dtype of products; None follows the input"""
        self.layer.adapter = self

    @property
    def trained(self) -> tuple[str, ...]:
        return self.parts

    @property
    def multiplies(self) -> int:
        """Multiplications per row of the input, besides those of linears in the layer."""
        return 0

    @abstractmethod
    def in_file(self) -> dict[str, Tensor]:
        """Returns a LoRA file's tensors by ComfyUI's part names."""

    @abstractmethod
    def norm(self) -> Tensor:
        """Returns the Frobenius norm () of the change, which `max_norm` bounds."""

    @abstractmethod
    def shrink(self, ratio: Tensor) -> None:
        """Scales the change by `ratio` ()."""

    def parameter(self, part: str) -> nn.Parameter:
        holder, key = self._place(part)
        return cast(nn.Parameter, holder[key] if isinstance(holder, nn.ParameterDict) else getattr(holder, key))

    def parameters(self) -> dict[str, nn.Parameter]:
        """Returns its parameters by their full names."""
        return {f"{self.name}.{part}": self.parameter(part) for part in self.trained}

    @property
    def values(self) -> int:
        """Number of trained values."""
        return sum(self.parameter(part).numel() for part in self.trained)

    def move(self, device: torch.device) -> None:
        for part in self.trained:
            self.parameter(part).data = self.parameter(part).data.to(device)
        self.constants = {part: value.to(device) for part, value in self.constants.items()}

    def _place(self, part: str) -> tuple[Any, str]:
        holder, _, key = part.partition(".")
        found = getattr(self.layer, holder)
        if isinstance(found, nn.Parameter):
            return self.layer, holder
        return (found[_NAME], key) if key else (found, _NAME)


def named(part: nn.Module | tuple[int, ...]) -> nn.Module:
    """Returns a part in the container that PEFT uses in a layer; a shape becomes a meta parameter of that shape."""
    if isinstance(part, nn.Module):
        return nn.ModuleDict({_NAME: part})
    return nn.ParameterDict({_NAME: _without_memory(part)})


def _without_memory(shape: tuple[int, ...]) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape, device="meta", dtype=torch.float32))


class Weight(nn.Module):
    """A part with a parameter called `weight` that is not a linear."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.weight = _without_memory(shape)
