"""The trained part of one module of a frozen model; its values are found, moved and told to a file here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, cast

import torch
from torch import Tensor, nn

from .config import LoraConfig

_NAME = "default"
"""what PEFT calls the one adapter of a layer, and so do we: names within a model are those people know"""


class ModuleAdapter(ABC):
    """Adapts one module. Made by `inject_lora`, which puts a layer with the module inside in its place.

    Parameters are float32.
    """

    parts: tuple[str, ...] = ()
    """the names of its parameters behind that of the module, such as lora_A.weight"""

    def __init__(self, name: str, layer: nn.Module, config: LoraConfig) -> None:
        """`layer`: what stands in the module's place, with the module as `base_layer`."""
        self.name, self.layer, self.config = name, cast(Any, layer), config
        self.constants: dict[str, Tensor] = {}
        """what it needs besides its parameters to go on, by part; not trained"""
        self.strength = 1.0
        """for sampling: 1 is what was trained, 0 the base"""
        self.bypassed = False
        """whether the module is the base's own for now, to the last bit (`without_adapters`)"""
        self.dtype: torch.dtype | None = None
        """what products run in; None follows the input"""
        self.layer.adapter = self

    @property
    def trained(self) -> tuple[str, ...]:
        """All parts that are trained."""
        return self.parts

    @property
    def multiplies(self) -> int:
        """Multiplications for each row of the input, besides those of linears within the layer."""
        return 0

    @abstractmethod
    def in_file(self) -> dict[str, Tensor]:
        """Returns what a LoRA file holds of it, by the parts ComfyUI knows."""

    @abstractmethod
    def norm(self) -> Tensor:
        """Returns the size of the change () that `max_norm` bounds: the Frobenius norm of what is added."""

    @abstractmethod
    def shrink(self, ratio: Tensor) -> None:
        """Makes the change `ratio` () times as large."""

    def parameter(self, part: str) -> nn.Parameter:
        """Returns the parameter called `part`."""
        holder, key = self._place(part)
        return cast(nn.Parameter, holder[key] if isinstance(holder, nn.ParameterDict) else getattr(holder, key))

    def parameters(self) -> dict[str, nn.Parameter]:
        """Returns its parameters by their whole names."""
        return {f"{self.name}.{part}": self.parameter(part) for part in self.trained}

    @property
    def values(self) -> int:
        """How many values it trains."""
        return sum(self.parameter(part).numel() for part in self.trained)

    def move(self, device: torch.device) -> None:
        """Moves all of it to a device."""
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
    """Returns one part of an adapter as PEFT lays it into a layer; a shape becomes a parameter without memory."""
    if isinstance(part, nn.Module):
        return nn.ModuleDict({_NAME: part})
    return nn.ParameterDict({_NAME: _without_memory(part)})


def _without_memory(shape: tuple[int, ...]) -> nn.Parameter:
    """Returns a float32 parameter of that shape, to be given values."""
    return nn.Parameter(torch.empty(shape, device="meta", dtype=torch.float32))


class Weight(nn.Module):
    """A part whose parameter is called `weight`, and that is no linear."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.weight = _without_memory(shape)
