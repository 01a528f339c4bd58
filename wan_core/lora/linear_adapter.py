"""The base class of all kinds of adapters of a linear: initialisation, forward pass, limit of the norm, LoRA file.

A layer replaces the linear; its parameters have PEFT's names and sizes. Each kind defines its forward pass in
its own file, and its norm and its parts in a LoRA file in a `Change`. A linear is (out, in), r the rank; parameters
are float32, products run in the dtype of the layer's input.
"""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..accelerator import seed_of
from ..flow import seeded_generator
from ..kernels import HeldValues, modules_changed, unread
from ..model import untraced
from ..model.narrowed import Narrowed
from .changes import BIAS, Change
from .config import LoraConfig
from .module_adapter import ModuleAdapter
from .one_pass import OneLora, with_loras


class AdaptedLinear(nn.Module):
    """Replaces a linear: holds it as `base_layer`, with the parts of its adapter."""

    adapter: LinearAdapter

    def __init__(self, base: nn.Linear, parts: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.base_layer = base
        modules_changed()
        self.held, self.narrowed = HeldValues(), Narrowed()
        for name, part in parts.items():
            self.add_module(name, part)

    # These are methods of the layer and not of the adapter, because torch 2.6 compiles modules only.
    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """x (..., in) -> (..., out)."""
        return self.adapter.forward(x, *args, **kwargs)

    def unread(self, x: Tensor) -> Tensor:
        """`forward` without computing the unused output (`kernels/backward_only.py`)."""
        return self.adapter.unread(x)

    def together(self, layers: Sequence[nn.Module], x: Tensor, names: Sequence[str]) -> tuple[Tensor, ...] | None:
        """Returns the outputs of these layers, this one among them, for one x (..., in), where all are one node;
        `names`: of the activations."""
        if torch.compiler.is_compiling():  # In compiled code, LoRAs stay separate nodes.
            return None
        adapters = [layer.adapter for layer in layers if isinstance(layer, AdaptedLinear)]
        if len(adapters) < len(layers) or any(adapter.bypassed for adapter in adapters):
            return None
        loras = [lora for adapter in adapters if (lora := adapter.in_one_pass(x)) is not None]
        if len(loras) < len(layers):
            return None
        outputs = zip(adapters, with_loras(loras, x, names), strict=True)
        return tuple(adapter.with_bias(output) for adapter, output in outputs)

    def to_narrow(self, dtype: torch.dtype) -> list[nn.Parameter]:
        """Returns the parameters that `model/narrowed.py` converts to `dtype` for a pass."""
        return self.adapter.to_narrow(dtype)


class LinearAdapter(ModuleAdapter):
    """Adapts one linear, and its bias where requested."""

    reads_output: ClassVar[bool] = False
    """whether the gradients of the adapter need the linear's output"""

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
        """`layer`: the linear with `layer_parts` on meta. `dtype`: see `inject_lora`."""
        super().__init__(name, layer, config)
        self.rank, self.alpha, self.dtype = rank, alpha, dtype
        self._has_bias = config.trains_biases and has_bias(self.base)
        if self._has_bias:
            self.layer.diff_b = nn.Parameter(torch.zeros(self.base.out_features, device=self.base.weight.device))

    @staticmethod
    @abstractmethod
    def layer_parts(linear: nn.Linear, config: LoraConfig, rank: int) -> dict[str, nn.Module]:
        """Returns the parts of the layer besides the linear, on meta, named and sized as in PEFT."""

    @staticmethod
    def rank_for(linear: nn.Linear, rank: int) -> int:
        """Returns the rank of a linear's adapter where `rank` is requested."""
        return rank

    @abstractmethod
    def start(self, seed: int) -> None:
        """Initialises every part from `seed` and names; the change starts at zero."""

    @abstractmethod
    def change(self, x: Tensor, base: Tensor) -> Tensor:
        """Returns the output (..., out) for the input x (..., in), given the linear's output `base`."""

    @abstractmethod
    def learnt(self) -> Change:
        """Returns the current change of the weight, with gradients."""

    def exported(self) -> dict[str, Tensor]:
        """Returns a LoRA file's tensors by ComfyUI's part names, without the bias."""
        return {part: self.parameter(part).detach() for part in self.parts} | {"alpha": torch.tensor(self.alpha)}

    def norm(self) -> Tensor:
        return self.learnt().norm()

    def shrink(self, ratio: Tensor) -> None:
        """Scales the change by `ratio` (), spread evenly over its factors."""
        for part in self.parts:
            self.parameter(part).mul_(ratio ** (1 / len(self.parts)))

    def in_file(self) -> dict[str, Tensor]:
        return self.exported() | ({BIAS: self.parameter(BIAS).detach()} if self._has_bias else {})

    @property
    def base(self) -> nn.Linear:
        """The adapted linear; read from the layer each time, since loading may replace it."""
        # Read from `_modules`: a module searches an attribute in three places, and a step reads this a hundred times a
        # block.
        return cast("nn.Linear", self.layer._modules["base_layer"])

    @property
    def scale(self) -> float:
        """The factor of the change."""
        return self.alpha / self.rank

    @property
    def trained(self) -> tuple[str, ...]:
        return (*self.parts, BIAS) if self._has_bias else self.parts

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """x (..., in) -> (..., out); the layer's forward."""
        if not (args or kwargs or self.bypassed) and (lora := self.in_one_pass(x)) is not None:
            return self.with_bias(*with_loras([lora], x))
        return self._changed(x, self.layer.base_layer(x, *args, **kwargs))

    def in_one_pass(self, x: Tensor) -> OneLora | None:
        """Returns linear and LoRA, without the bias, if one autograd node computes both for such an x; else None."""
        return None

    def to_narrow(self, dtype: torch.dtype) -> list[nn.Parameter]:
        """Returns the parameters that `in_one_pass` reads in `dtype`, the dtype of the input; none if it is not
        used."""
        return []

    def unread(self, x: Tensor) -> Tensor:
        """`forward` without computing the unused output (`kernels/backward_only.py`)."""
        if self.reads_output:
            return self.forward(x)
        if not self.bypassed and (lora := self.in_one_pass(x)) is not None:
            return self.with_bias(*with_loras([lora], x, read=False))
        return self._changed(x, unread(self.layer.base_layer, x))

    def _changed(self, x: Tensor, base: Tensor) -> Tensor:
        return base if self.bypassed else self.with_bias(self.change(x, base))

    def with_bias(self, changed: Tensor) -> Tensor:
        """Adds the trained bias, where there is one, to the changed output (..., out)."""
        if not self._has_bias:
            return changed
        offset = self.layer.diff_b.to(changed.dtype)
        if self.layer.training and self.config.module_dropout:
            offset = offset * _present(self.name, self.config.module_dropout, offset.device).to(offset)
        return torch.add(changed, offset, alpha=self.strength)

    def compute_dtype(self, x: Tensor) -> torch.dtype:
        return self.dtype or x.dtype

    def dropped(self, x: Tensor) -> Tensor:
        """Applies input dropout."""
        return functional.dropout(x, self.config.dropout, self.layer.training) if self.config.dropout else x

    def kept(self, count: int) -> Tensor | None:
        """Returns the dropout factors (count,) of ranks, rows or blocks in this micro-step; None without dropout."""
        rank_p, module_p = self.config.rank_dropout, self.config.module_dropout
        if not self.layer.training or not (rank_p or module_p):
            return None
        # Drawn from the micro-step's seed and the module's name, so that every chunk of tokens and the recomputation
        # have the same mask.
        return _kept(self.name, count, rank_p, module_p, self.parameter(self.parts[0]).device)

    def without_bias(self, base: Tensor) -> Tensor:
        """Returns W @ x from the linear's output."""
        bias = cast("Tensor | None", self.base.bias)
        return base if bias is None else base - bias.to(base.dtype)

    def set_values(self, part: str, values: Tensor) -> None:
        """Replaces a part, possibly on meta, by these values."""
        device, holder, key = self.base.weight.device, *self._place(part)
        parameter = nn.Parameter(values.to(device, torch.float32).contiguous())
        if isinstance(holder, nn.ParameterDict):
            holder[key] = parameter
        else:
            setattr(holder, key, parameter)

    def begin(self, part: str, seed: int, bound: float | None) -> None:
        """Initialises a part uniformly in [-bound, bound), with zeros for None."""
        shape = self.parameter(part).shape
        if self.base.weight.device.type == "meta" or bound is None:  # a meta model has no values
            self.set_values(part, torch.zeros(shape, device=self.base.weight.device))
        else:
            self.set_values(part, uniform(shape, bound, seed, "lora", self.name, part))


def has_bias(linear: nn.Linear) -> bool:
    return cast("Tensor | None", linear.bias) is not None  # torch types bias as Tensor, and it may be None


def uniform(shape: torch.Size, bound: float, *named: int | str) -> Tensor:
    """Returns CPU values in [-bound, bound), decided by the names."""
    return torch.rand(shape, generator=seeded_generator(*named)) * (2 * bound) - bound


def _kept(name: str, count: int, rank_p: float, module_p: float, device: torch.device) -> Tensor:
    """Returns (count,) on `device`: 0 for dropped ranks, else the factor that keeps the mean."""
    drawn = torch.rand(count, generator=seeded_generator(seed_of(device), "rank dropout", name)) >= rank_p
    return (drawn * _present(name, module_p, device) / (1 - rank_p)).to(device)


def _present(name: str, module_p: float, device: torch.device) -> Tensor:
    """Returns (1,) on the CPU: False where the adapter is dropped in this micro-step of `device`."""
    return torch.rand(1, generator=seeded_generator(seed_of(device), "module dropout", name)) >= module_p


for _draw in ("_kept", "_present"):  # A compiled graph would repeat the first draw.
    untraced(sys.modules[__name__], _draw)
