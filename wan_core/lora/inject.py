"""Adapters in a model: inject, count, bound, disable, and copy in and out as plain tensors.

Adapter weights are float32; their matmuls run in the layer's dtype.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn

from ..errors import CheckpointError, ConfigError
from ..model import block_of, models_of
from .changes import BIAS
from .config import PEFT, STARTS_IN_THE_WEIGHT, LoraConfig
from .linear_adapter import AdaptedLinear, LinearAdapter, has_bias
from .low_rank import DoraAdapter, LoraAdapter, RsLoraAdapter
from .module_adapter import ModuleAdapter
from .norms import NormAdapter, norms_beside
from .products import LohaAdapter, LokrAdapter, OftAdapter
from .tuners import say_left_out, tuned

_KINDS: dict[str, type[LinearAdapter]] = {
    "LoRA": LoraAdapter,
    "rsLoRA": RsLoraAdapter,
    "DoRA": DoraAdapter,
    "LoKr": LokrAdapter,
    "LoHa": LohaAdapter,
    "OFT": OftAdapter,
}


def inject_lora(
    model: nn.Module,
    config: LoraConfig,
    *,
    seed: int,
    dtype: torch.dtype | None = None,
    weights: Callable[[str], AbstractContextManager[None]] = lambda _name: nullcontext(),
) -> list[str]:
    """Injects adapters into every targeted linear of a placed (and quantized) model, and into what `also_train` names.

    Returns the names of the adapted linears. The base stays frozen; adapter weights are float32 on their layer's device
    and change nothing yet. `dtype`: compute dtype of adapter matmuls; None follows the input, which saves a float32
    copy of each activation. `weights`: inside, the linear of that name has its weight, for starts that read it.
    """
    linears = check_targets(model, config)
    norms = norms_beside(model, linears) if config.trains_norms else {}
    model.requires_grad_(False)
    if config.kind == PEFT:
        for name, layer in tuned(linears, config, seed).items():
            _put(model, name, layer)
        return list(linears)
    for name, (rank, alpha) in config.ranks_of(list(linears)).items():
        adapter = _adapter(name, linears[name], config, rank, alpha, dtype)
        # Random generators are seeded by (seed, module), so device, split and order do not change the start.
        with weights(name) if config.init in STARTS_IN_THE_WEIGHT else nullcontext():
            adapter.start(seed)
        _put(model, name, adapter.layer)
    for name, norm in norms.items():
        _put(model, name, NormAdapter(name, norm, config).layer)
    return list(linears)


def _adapter(
    name: str, linear: nn.Linear, config: LoraConfig, rank: int, alpha: float, dtype: torch.dtype | None = None
) -> LinearAdapter:
    kind = _KINDS[config.kind]
    rank = kind.rank_for(linear, rank)
    layer = AdaptedLinear(linear, kind.layer_parts(linear, config, rank))
    return kind(name, layer, config, rank=rank, alpha=alpha, dtype=dtype)


def _put(model: nn.Module, name: str, layer: nn.Module) -> None:
    owner, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(owner), leaf, layer.train(model.training))


def check_targets(model: nn.Module, config: LoraConfig) -> dict[str, nn.Linear]:
    """Returns the targeted linears by name; `model` may be meta.

    Raises ConfigError for targets that match nothing, match a linear outside the blocks, or take too long to match.
    """
    linears = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    found = {name: linears[name] for name in config.targeted(list(linears))}
    config.ranks_of(list(found))
    if outside := [name for name in found if block_of(name) is None]:
        raise ConfigError(
            f"The LoRA targets match {outside[0]}, which is outside the blocks and cannot be adapted. "
            r"Begin each target with blocks\.\d+\."
        )
    if not found:
        raise ConfigError(
            f"No linear of the model matches the LoRA targets {list(config.targets)}. Example: blocks\\.\\d+\\.ffn\\.0"
        )
    return found


def adapters_of(model: nn.Module) -> Iterator[ModuleAdapter]:
    if isinstance(adapter := vars(model).get("adapter"), ModuleAdapter):
        yield adapter  # does not descend into the layer, because this function runs in every step
        return
    for child in model.children():
        yield from adapters_of(child)


def adapter_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Returns the trainable parameters by name, such as `<module>.lora_A.weight` (rank, in)."""
    return {name: value for adapter in adapters_of(model) for name, value in adapter.parameters().items()}


def adapted_modules(model: nn.Module, config: LoraConfig) -> dict[str, nn.Module]:
    """Returns the linears and norms that get an adapter, by name; refuses as `check_targets`."""
    linears = check_targets(model, config)
    return {**linears, **(norms_beside(model, linears) if config.trains_norms else {})}


def count_values(model: nn.Module, config: LoraConfig) -> dict[str, int]:
    """Returns the number of trained values by module name; `model` may be meta."""
    return {name: values for name, values, _ in _sized(model, config)}


def parts_in_file(model: nn.Module, config: LoraConfig) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of a LoRA file's tensors by `<module>.<part>`; `model` may be meta."""
    return {f"{name}.{part}": shape for name, _, parts in _sized(model, config) for part, shape in parts.items()}


def _sized(model: nn.Module, config: LoraConfig) -> Iterator[tuple[str, int, dict[str, tuple[int, ...]]]]:
    """Yields each module with its number of trained values and the shapes of its parts in a file."""
    adapted, config, whole = adapted_modules(model, config), config.planned, config.peft_file == "differences"
    ranks = config.ranks_of([name for name, module in adapted.items() if isinstance(module, nn.Linear)])
    for name, module in adapted.items():
        if isinstance(module, nn.Linear):
            size = (module.in_features, module.out_features, *ranks[name])
            values, parts = _sizes_of(config.kind, config.init, config.lokr_factor, *size)
            more = {BIAS: (module.out_features,)} if config.trains_biases and has_bias(module) else {}
            parts = {"diff": (module.out_features, module.in_features)} if whole else parts
        else:
            values, parts = 0, {}
            more = {part: tuple(value.shape) for part, value in NormAdapter(name, module, config).in_file().items()}
        yield name, values + sum(map(math.prod, more.values())), parts | more


@lru_cache(maxsize=256)
def _sizes_of(
    kind: str, init: str, lokr_factor: int, wide: int, tall: int, rank: int, alpha: float
) -> tuple[int, dict[str, tuple[int, ...]]]:
    """Returns trained values and part shapes of a linear without its bias."""
    # without alpha, which changes no size
    config = LoraConfig(kind=kind, init=init, rank=rank, lokr_factor=lokr_factor)
    adapter = _adapter("linear", nn.Linear(wide, tall, bias=False, device="meta"), config, rank, alpha)
    adapter.start(0)
    with torch.no_grad():
        return adapter.values, {part: tuple(value.shape) for part, value in adapter.in_file().items()}


def exported(model: nn.Module) -> dict[str, Tensor]:
    """Returns CPU copies of a LoRA file's tensors by `<module>.<part>`, in ComfyUI's names."""
    with torch.no_grad():
        found = {
            f"{adapter.name}.{part}": value.to("cpu", copy=True)
            for adapter in adapters_of(model)
            for part, value in adapter.in_file().items()
        }
    say_left_out(adapters_of(model))
    return found


def limit_norms(model: nn.Module) -> None:
    """Scales each change down to its `max_norm`, if it has one; called after each step."""
    with torch.no_grad():
        for adapter in adapters_of(model):
            if adapter.config.max_norm:
                norm = adapter.norm()
                adapter.shrink((adapter.config.max_norm / norm.clamp(min=torch.finfo(norm.dtype).tiny)).clamp(max=1))


def set_adapter_dtype(model: nn.Module, dtype: torch.dtype | None) -> None:
    """Sets the compute dtype of all adapter matmuls; None follows each layer's input."""
    for adapter in adapters_of(model):
        adapter.dtype = dtype


def set_strength(model: nn.Module, strength: float) -> None:
    """Scales the adapters for sampling; 1.0 is the trained strength, 0.0 the base model."""
    for adapter in adapters_of(model):
        adapter.strength = strength


@contextmanager
def without_adapters(model: nn.Module) -> Iterator[None]:
    """Inside, the model and its copies compute the bit-exact base model with frozen LoRAs; nothing is moved or
    copied."""
    adapters = [adapter for one in models_of(model) for adapter in adapters_of(one)]
    for adapter in adapters:
        adapter.bypassed = True
    try:
        yield
    finally:
        for adapter in adapters:
            adapter.bypassed = False


@dataclass(frozen=True)
class LoraWeights:
    """Trained values by parameter name: `<module>.lora_A.weight` (rank, in), `<module>.lora_B.weight` (out, rank)."""

    tensors: dict[str, Tensor]

    @classmethod
    def of(cls, model: nn.Module) -> LoraWeights:
        """Returns float32 CPU copies of a model's adapters."""
        return cls({name: p.detach().to("cpu", copy=True) for name, p in adapter_tensors(model).items()})

    def load_into(self, model: nn.Module, source: str) -> None:
        """Copies the values into a model's adapters; CheckpointError unless names and shapes match exactly."""
        parameters = adapter_tensors(model)
        missing, unknown = parameters.keys() - self.tensors.keys(), self.tensors.keys() - parameters.keys()
        if missing or unknown:
            raise CheckpointError(
                f"{source} does not fit this LoRA: {len(missing)} weights are missing and {len(unknown)} unknown "
                f"(for example {min(missing or unknown)}). Use the same base model and targets."
            )
        for name, parameter in parameters.items():
            value = self.tensors[name]
            if value.shape != parameter.shape:
                raise CheckpointError(
                    f"{source}: {name} has shape {tuple(value.shape)}, but {tuple(parameter.shape)} is needed. "
                    "Set rank to the rank of the file."
                )
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(self.tensors[name])


def adapter_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Returns the trained parameters, and the adapters' constants that a resume needs."""
    found: dict[str, Tensor] = dict(adapter_parameters(model))
    for adapter in adapters_of(model):
        found |= {f"{adapter.name}.{part}": value for part, value in adapter.constants.items()}
    return found
