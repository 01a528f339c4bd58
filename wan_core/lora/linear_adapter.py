"""The trained change of one linear, whatever its kind: begun, computed, held in bounds, and told to a file.

PEFT makes the layer and its parameters; what is computed with them stands here and in the files of the kinds. A linear
is (out, in), r the rank of its adapter; parameters are float32, their products run in the dtype of the layer's input.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import MethodType
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..flow import seeded_generator
from ..model.unread import unread
from .config import LoraConfig

__all__ = ["PEFT_NAME", "LinearAdapter", "uniform"]

PEFT_NAME = "default"
"""what PEFT calls the one adapter of a layer"""


class LinearAdapter(ABC):
    """Adapts one linear. Made by `inject_lora`, which puts PEFT's layer in the place of the linear."""

    parts: tuple[str, ...] = ()
    """the names of its parameters behind that of the module, such as lora_A.weight"""

    def __init__(
        self,
        name: str,
        layer: nn.Module,
        config: LoraConfig,
        *,
        rank: int,
        alpha: float,
        dtype: torch.dtype | None,
    ) -> None:
        """`layer`: PEFT's, its parameters without values yet, with the linear as `base_layer`. `dtype`: see
        `inject_lora`."""
        self.name, self.layer, self.config = name, cast(Any, layer), config
        self.rank, self.alpha, self.dtype = rank, alpha, dtype
        self.constants: dict[str, Tensor] = {}
        """what it needs besides its parameters to go on, by part; not trained"""
        self.strength = 1.0
        """for sampling: 1 is what was trained, 0 the base"""
        self.bypassed = False
        """whether the linear is the base's own for now, to the last bit (`without_adapters`)"""
        self.layer.adapter = self
        # Of the layer and not of this object: torch 2.6 compiles no method of something that is no module.
        self.layer.forward, self.layer.unread = MethodType(_forward, layer), MethodType(_unread, layer)

    # ---- what each kind says of itself

    @staticmethod
    @abstractmethod
    def peft_config(config: LoraConfig, rank: int, alpha: float) -> Any:
        """Returns PEFT's settings of one layer."""

    @staticmethod
    def stand_in(linear: nn.Linear) -> tuple[int, int]:
        """Returns (in, out) of the linear that PEFT sizes the layer for."""
        return linear.in_features, linear.out_features

    @staticmethod
    def rank_for(linear: nn.Linear, rank: int) -> int:
        """Returns the rank that a linear gets where `rank` is asked for."""
        return rank

    @property
    def multiplies(self) -> int:
        """Multiplications for each row of the input, besides those of linears within PEFT's layer."""
        return 0

    @abstractmethod
    def start(self, seed: int) -> None:
        """Gives every part its first values, which names and `seed` alone decide: the change begins at nothing."""

    @abstractmethod
    def change(self, x: Tensor, base: Tensor) -> Tensor:
        """Returns the output (..., out) for the input x (..., in), where the linear itself gives `base`."""

    @abstractmethod
    def exported(self) -> dict[str, Tensor]:
        """Returns what a LoRA file holds of it, by the parts ComfyUI knows."""

    @abstractmethod
    def norm(self) -> Tensor:
        """Returns the size of the change () that `max_norm` bounds: the Frobenius norm of what is added."""

    @abstractmethod
    def shrink(self, ratio: Tensor) -> None:
        """Makes the change `ratio` () times as large."""

    # ---- what all have in common

    @property
    def base(self) -> nn.Linear:
        """The linear it changes: asked for anew, so that one whose weight was replaced, or moved, is not kept."""
        return cast("nn.Linear", self.layer.base_layer)

    @property
    def scale(self) -> float:
        """What the change is multiplied with."""
        return self.alpha / self.rank

    def parameter(self, part: str) -> nn.Parameter:
        """Returns the parameter called `part`."""
        holder, key = self._place(part)
        return cast(nn.Parameter, holder[key] if isinstance(holder, nn.ParameterDict) else getattr(holder, key))

    def parameters(self) -> dict[str, nn.Parameter]:
        """Returns its parameters by their whole names."""
        return {f"{self.name}.{part}": self.parameter(part) for part in self.parts}

    @property
    def values(self) -> int:
        """How many values it trains."""
        return sum(self.parameter(part).numel() for part in self.parts)

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """x (..., in) -> (..., out); the forward of PEFT's layer."""
        return self._changed(x, self.layer.base_layer(x, *args, **kwargs))

    def unread(self, x: Tensor) -> Tensor:
        """Does what `forward` does for the way back alone (`model/unread.py`)."""
        return self._changed(x, unread(self.layer.base_layer, x))

    def _changed(self, x: Tensor, base: Tensor) -> Tensor:
        return base if self.bypassed else self.change(x, base)

    def compute_dtype(self, x: Tensor) -> torch.dtype:
        """Returns what products with the input x run in."""
        return self.dtype or x.dtype

    def dropped(self, x: Tensor) -> Tensor:
        """Returns the input as the adapter sees it: in training some of it is 0."""
        return functional.dropout(x, self.config.dropout, self.layer.training) if self.config.dropout else x

    def kept(self, count: int) -> Tensor | None:
        """Returns what each of `count` ranks, rows or blocks counts with in this micro-step (count,).

        None where all count. The draw is named by the micro-step's own seed and the module, so every chunk of tokens
        and every pass over them again meets the same.
        """
        rank_p, module_p = self.config.rank_dropout, self.config.module_dropout
        if not self.layer.training or not (rank_p or module_p):
            return None
        return cast(Tensor, cast(Any, _kept)(self.name, count, rank_p, module_p)).to(
            self.parameter(self.parts[0]).device
        )

    def without_bias(self, base: Tensor) -> Tensor:
        """Returns what the linear gives less its bias: W @ x."""
        bias = cast("Tensor | None", self.base.bias)
        return base if bias is None else base - bias.to(base.dtype)

    def move(self, device: torch.device) -> None:
        """Moves all of it to a device."""
        for part in self.parts:
            self.parameter(part).data = self.parameter(part).data.to(device)
        self.constants = {part: value.to(device) for part, value in self.constants.items()}

    def set_values(self, part: str, values: Tensor) -> None:
        """Gives a part, which may be without memory, its values."""
        device, holder, key = self.base.weight.device, *self._place(part)
        parameter = nn.Parameter(values.to(device, torch.float32).contiguous())
        if isinstance(holder, nn.ParameterDict):
            holder[key] = parameter
        else:
            setattr(holder, key, parameter)

    def begin(self, part: str, seed: int, bound: float | None) -> None:
        """Gives a part uniform values in [-bound, bound), or zeros where that is None."""
        shape = self.parameter(part).shape
        if self.base.weight.device.type == "meta" or bound is None:  # only sizes are asked for
            self.set_values(part, torch.zeros(shape, device=self.base.weight.device))
        else:
            self.set_values(part, uniform(shape, bound, seed, "lora", self.name, part))

    def _place(self, part: str) -> tuple[Any, str]:
        holder, _, key = part.partition(".")
        found = getattr(self.layer, holder)
        return (found[PEFT_NAME], key) if key else (found, PEFT_NAME)


def uniform(shape: torch.Size, bound: float, *named: int | str) -> Tensor:
    """Returns CPU values in [-bound, bound) that the names alone decide."""
    return torch.rand(shape, generator=seeded_generator(*named)) * (2 * bound) - bound


@torch.compiler.disable
def _kept(name: str, count: int, rank_p: float, module_p: float) -> Tensor:
    """Returns (count,) on the CPU: 0 for what is dropped, else what keeps the mean of a rank or row."""
    step = torch.initial_seed()
    drawn = torch.rand(count, generator=seeded_generator(step, "rank dropout", name)) >= rank_p
    whole = torch.rand(1, generator=seeded_generator(step, "module dropout", name)) >= module_p
    return drawn * whole / (1 - rank_p)


def _forward(layer: Any, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return layer.adapter.forward(x, *args, **kwargs)


def _unread(layer: Any, x: Tensor) -> Tensor:
    return layer.adapter.unread(x)
