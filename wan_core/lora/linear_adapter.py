"""The trained change of one linear, whatever its kind: its start, its forward, its bound, and its form in a file.

A layer of ours stands in the place of the linear. Its parameters are named and sized as PEFT's. The forward stands here
and in the files of the kinds, norm and file form in the `Change` of the kind. A linear is (out, in), r the rank of its
adapter; parameters are float32, their products run in the dtype of the layer's input.
"""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..flow import seeded_generator
from ..model import untraced
from ..model.held import HeldValues
from ..model.unread import unread
from .changes import BIAS, Change
from .config import LoraConfig
from .module_adapter import ModuleAdapter


class AdaptedLinear(nn.Module):
    """Stands in the place of a linear: the linear, and the parts of its adapter beside it."""

    adapter: LinearAdapter

    def __init__(self, base: nn.Linear, parts: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.base_layer = base
        self.held = HeldValues()
        for name, part in parts.items():
            self.add_module(name, part)

    # Methods of the layer and not of the adapter: torch 2.6 compiles none of something that is no module.
    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """x (..., in) -> (..., out)."""
        return self.adapter.forward(x, *args, **kwargs)

    def unread(self, x: Tensor) -> Tensor:
        """Does what `forward` does for the way back alone (`model/unread.py`)."""
        return self.adapter.unread(x)


class LinearAdapter(ModuleAdapter):
    """Adapts one linear, and its bias where that is requested."""

    reads_output: ClassVar[bool] = False
    """whether its gradients need the values that the linear puts out"""

    def __init__(
        self,
        name: str,
        layer: AdaptedLinear,
        config: LoraConfig,
        *,
        rank: int,
        alpha: float,
        dtype: torch.dtype | None,
    ) -> None:
        """`layer`: the linear with `layer_parts`, which have no values yet. `dtype`: see `inject_lora`."""
        super().__init__(name, layer, config)
        self.rank, self.alpha, self.dtype = rank, alpha, dtype
        self._has_bias = config.trains_biases and has_bias(self.base)
        if self._has_bias:
            self.layer.diff_b = nn.Parameter(torch.zeros(self.base.out_features, device=self.base.weight.device))

    # ---- what each kind says of itself

    @staticmethod
    @abstractmethod
    def layer_parts(linear: nn.Linear, config: LoraConfig, rank: int) -> dict[str, nn.Module]:
        """Returns what lies beside the linear in its layer, as PEFT names and sizes it, without memory."""

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
    def learnt(self) -> Change:
        """Returns the change of the weight as it is now; gradients flow to the parameters."""

    def exported(self) -> dict[str, Tensor]:
        """Returns what a LoRA file holds of it, by the parts ComfyUI knows, the bias apart."""
        return {part: self.parameter(part).detach() for part in self.parts} | {"alpha": torch.tensor(self.alpha)}

    # ---- what all have in common

    def norm(self) -> Tensor:
        return self.learnt().norm()

    def shrink(self, ratio: Tensor) -> None:
        """Makes the change `ratio` () times as large: its parts are the factors of one product."""
        for part in self.parts:
            self.parameter(part).mul_(ratio ** (1 / len(self.parts)))

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
        """x (..., in) -> (..., out); the forward of the layer."""
        if not (args or kwargs or self.bypassed) and (changed := self.in_one_pass(x, read=True)) is not None:
            return self._with_bias(changed)
        return self._changed(x, self.layer.base_layer(x, *args, **kwargs))

    def in_one_pass(self, x: Tensor, *, read: bool) -> Tensor | None:
        """Returns the linear's output with the change, the bias apart, where both are one node; else None."""
        return None

    def unread(self, x: Tensor) -> Tensor:
        """Does what `forward` does for the way back alone (`model/unread.py`)."""
        if self.reads_output:
            return self.forward(x)
        if not self.bypassed and (changed := self.in_one_pass(x, read=False)) is not None:
            return self._with_bias(changed)
        return self._changed(x, unread(self.layer.base_layer, x))

    def _changed(self, x: Tensor, base: Tensor) -> Tensor:
        return base if self.bypassed else self._with_bias(self.change(x, base))

    def _with_bias(self, changed: Tensor) -> Tensor:
        if not self._has_bias:
            return changed
        offset = self.layer.diff_b.to(changed.dtype)
        if self.layer.training and self.config.module_dropout:
            offset = offset * _present(self.name, self.config.module_dropout).to(offset)
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
        return _kept(self.name, count, rank_p, module_p).to(self.parameter(self.parts[0]).device)

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


def _kept(name: str, count: int, rank_p: float, module_p: float) -> Tensor:
    """Returns (count,) on the CPU: 0 for what is dropped, else what keeps the mean of a rank or row."""
    drawn = torch.rand(count, generator=seeded_generator(torch.initial_seed(), "rank dropout", name)) >= rank_p
    return drawn * _present(name, module_p) / (1 - rank_p)


def _present(name: str, module_p: float) -> Tensor:
    """Returns (1,) on the CPU: False where a whole adapter is left out of this micro-step."""
    return torch.rand(1, generator=seeded_generator(torch.initial_seed(), "module dropout", name)) >= module_p


for _draw in ("_kept", "_present"):  # a graph would hold what was drawn once
    untraced(sys.modules[__name__], _draw)
