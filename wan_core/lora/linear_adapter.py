"""The trained change of one linear, whatever its kind: begun, computed, held in bounds, and told to a file.

PEFT makes the layer and its parameters; what is computed with them stands here and in the files of the kinds. A linear
is (out, in), r the rank of its adapter; parameters are float32, their products run in the dtype of the layer's input.
"""

from __future__ import annotations

from abc import abstractmethod
from types import MethodType
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..flow import seeded_generator
from ..model.unread import unread
from .config import LoraConfig
from .module_adapter import ModuleAdapter

__all__ = ["BIAS", "LinearAdapter", "has_bias", "uniform"]

BIAS = "diff_b"
"""the trained change of a bias, as ComfyUI calls it"""


class LinearAdapter(ModuleAdapter):
    """Adapts one linear, and its bias where that is asked for. The layer in its place is PEFT's."""

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
        super().__init__(name, layer, config)
        self.rank, self.alpha, self.dtype = rank, alpha, dtype
        self._has_bias = config.trains_biases and has_bias(self.base)
        if self._has_bias:
            self.layer.diff_b = nn.Parameter(torch.zeros(self.base.out_features, device=self.base.weight.device))
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

    @abstractmethod
    def start(self, seed: int) -> None:
        """Gives every part its first values, which names and `seed` alone decide: the change begins at nothing."""

    @abstractmethod
    def change(self, x: Tensor, base: Tensor) -> Tensor:
        """Returns the output (..., out) for the input x (..., in), where the linear itself gives `base`."""

    @abstractmethod
    def exported(self) -> dict[str, Tensor]:
        """Returns what a LoRA file holds of it, by the parts ComfyUI knows, the bias apart."""

    # ---- what all have in common

    def in_file(self) -> dict[str, Tensor]:
        return self.exported() | ({BIAS: self.parameter(BIAS).detach()} if self._has_bias else {})

    @property
    def base(self) -> nn.Linear:
        """The linear it changes: asked for anew, so that one whose weight was replaced, or moved, is not kept."""
        return cast("nn.Linear", self.layer.base_layer)

    @property
    def scale(self) -> float:
        """What the change is multiplied with."""
        return self.alpha / self.rank

    @property
    def trained(self) -> tuple[str, ...]:
        return (*self.parts, BIAS) if self._has_bias else self.parts

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """x (..., in) -> (..., out); the forward of PEFT's layer."""
        return self._changed(x, self.layer.base_layer(x, *args, **kwargs))

    def unread(self, x: Tensor) -> Tensor:
        """Does what `forward` does for the way back alone (`model/unread.py`)."""
        return self._changed(x, unread(self.layer.base_layer, x))

    def _changed(self, x: Tensor, base: Tensor) -> Tensor:
        if self.bypassed:
            return base
        changed = self.change(x, base)
        if not self._has_bias:
            return changed
        offset = self.layer.diff_b.to(changed.dtype)
        if self.layer.training and self.config.module_dropout:
            offset = offset * cast(Tensor, cast(Any, _present)(self.name, self.config.module_dropout)).to(offset)
        return torch.add(changed, offset, alpha=self.strength)

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


def has_bias(linear: nn.Linear) -> bool:
    """Returns whether a linear has a bias, which torch's types do not tell."""
    return cast("Tensor | None", linear.bias) is not None


def uniform(shape: torch.Size, bound: float, *named: int | str) -> Tensor:
    """Returns CPU values in [-bound, bound) that the names alone decide."""
    return torch.rand(shape, generator=seeded_generator(*named)) * (2 * bound) - bound


@torch.compiler.disable
def _kept(name: str, count: int, rank_p: float, module_p: float) -> Tensor:
    """Returns (count,) on the CPU: 0 for what is dropped, else what keeps the mean of a rank or row."""
    drawn = torch.rand(count, generator=seeded_generator(torch.initial_seed(), "rank dropout", name)) >= rank_p
    return drawn * _is_present(name, module_p) / (1 - rank_p)


def _is_present(name: str, module_p: float) -> Tensor:
    """Returns (1,) on the CPU: False where a whole adapter is left out of this micro-step."""
    return torch.rand(1, generator=seeded_generator(torch.initial_seed(), "module dropout", name)) >= module_p


_present = torch.compiler.disable(_is_present)


def _forward(layer: Any, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return layer.adapter.forward(x, *args, **kwargs)


def _unread(layer: Any, x: Tensor) -> Tensor:
    return layer.adapter.unread(x)
