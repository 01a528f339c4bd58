"""LoRA adapters by PEFT injection: float32 weights, matmuls in the layer's dtype, a start that names alone decide."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from ..errors import ConfigError, DependencyError
from ..flow import seeded_generator
from ..model import block_of
from ..model.unread import unread
from ..packages import PEFT, causes_of, version_of, why_not_imported
from ..patterns import check_patterns
from .config import LoraConfig

if TYPE_CHECKING:
    from peft.tuners.lora import LoraLayer

__all__ = [
    "adapter_parameters",
    "check_peft",
    "check_targets",
    "inject_lora",
    "set_adapter_dtype",
    "set_strength",
]

_ADAPTER = "default"


def inject_lora(model: nn.Module, config: LoraConfig, *, seed: int, dtype: torch.dtype | None = None) -> list[str]:
    """Add adapters to every matching linear of a placed (and quantized) model; returns the adapted module names.

    A starts Kaiming-uniform from a generator named by (seed, module), B at zero, so neither device, split nor order
    changes the start. The base is frozen; adapter weights are float32 on their layer's device. `dtype` is what the
    adapter's matmuls run in; None follows the input, which spares a float32 copy of every activation.
    """
    peft_config, inject = _peft(config)
    # The linears by name, because an expression may also match a module PEFT cannot wrap, such as the GELU ffn.1.
    peft_config.target_modules = "|".join(map(re.escape, check_targets(model, config)))
    model.requires_grad_(False)
    inject(peft_config, model)
    names = []
    for name, layer in lora_layers(model):
        down, up = _pair(layer)
        down.data = _start(down, seed, name)
        up.data = torch.zeros_like(up, dtype=torch.float32)
        _compute_in(layer, dtype)
        names.append(name)
    return names


def check_targets(model: nn.Module, config: LoraConfig) -> dict[str, nn.Linear]:
    """Returns the linears a LoRA adapts, by name; also of a model on the meta device, before any weight is read.

    ConfigError for targets that match none or one that cannot be adapted, or that cannot be matched in good time.
    """
    check_patterns(config.targets, [name for name, _ in model.named_modules()], "LoRA target", whole=True)
    linears = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    found = {name: module for name, module in linears.items() if re.fullmatch(config.pattern, name)}
    if outside := [name for name in found if block_of(name) is None]:
        raise ConfigError(
            f"The LoRA targets match {outside[0]}, which lies outside the blocks and cannot be adapted. "
            r"Begin each target with blocks\.\d+\."
        )
    if not found:
        raise ConfigError(
            f"No linear of the model matches the LoRA targets {list(config.targets)}. Example: blocks\\.\\d+\\.ffn\\.0"
        )
    return found


def _start(weight: Tensor, seed: int, name: str) -> Tensor:
    """Returns A (rank, in), Kaiming-uniform with a = sqrt(5), as PEFT and the LoRA paper's code start A.

    That is U(-1/sqrt(in), 1/sqrt(in)).
    """
    if weight.device.type == "meta":  # only sizes are asked for
        return torch.empty_like(weight, dtype=torch.float32)
    bound = 1 / math.sqrt(weight.shape[1])
    values = torch.rand(weight.shape, generator=seeded_generator(seed, "lora", name)) * (2 * bound) - bound
    return values.to(weight.device)


def _compute_in(layer: LoraLayer, dtype: torch.dtype | None) -> None:
    """Replace the layer's forward by one that casts the small adapter weights instead of the large activations."""

    def forward(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return with_adapter(x, layer.base_layer(x, *args, **kwargs))

    def way_back(x: Tensor) -> Tensor:
        return with_adapter(x, unread(layer.base_layer, x))

    def with_adapter(x: Tensor, result: Tensor) -> Tensor:
        if layer.disable_adapters:
            return result
        inside = dtype or x.dtype
        down, up = _pair(layer)
        hidden = nn.functional.linear(layer.lora_dropout[_ADAPTER](x.to(inside)), down.to(inside))
        scale = layer.scaling[_ADAPTER]
        if inside == result.dtype:
            # One pass over the wide result instead of three: the product is added while it is made.
            rows = torch.addmm(result.flatten(0, -2), hidden.flatten(0, -2), up.to(inside).t(), alpha=scale)
            return rows.view(result.shape)
        return result + (nn.functional.linear(hidden, up.to(inside)) * scale).to(result.dtype)

    cast(Any, layer).forward, cast(Any, layer).unread = forward, way_back


def set_adapter_dtype(model: nn.Module, dtype: torch.dtype | None) -> None:
    """Let every adapter's matmuls run in `dtype` from now on; None follows each layer's input."""
    for _, layer in lora_layers(model):
        _compute_in(layer, dtype)


def _pair(layer: LoraLayer) -> tuple[nn.Parameter, nn.Parameter]:
    """Returns the weights A (rank, in) and B (out, rank)."""
    down, up = layer.lora_A[_ADAPTER], layer.lora_B[_ADAPTER]
    return cast(nn.Parameter, down.weight), cast(nn.Parameter, up.weight)


def lora_layers(model: nn.Module) -> Iterator[tuple[str, LoraLayer]]:
    """Yields (module name, layer) of every adapted linear, in model order."""
    from peft.tuners.lora import LoraLayer

    for name, module in model.named_modules():
        if isinstance(module, LoraLayer):
            yield name, module


def adapter_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Returns the trainable parameters: `<module>.lora_A.weight` (rank, in), `<module>.lora_B.weight` (out, rank)."""
    found: dict[str, nn.Parameter] = {}
    for name, layer in lora_layers(model):
        found[f"{name}.lora_A.weight"], found[f"{name}.lora_B.weight"] = _pair(layer)
    return found


def set_strength(model: nn.Module, strength: float, config: LoraConfig) -> None:
    """Scale the adapters for sampling; 1.0 is the trained strength, 0.0 the base model."""
    for _, layer in lora_layers(model):
        layer.scaling[_ADAPTER] = config.scale * strength


def check_peft() -> None:
    """Raises DependencyError with the package to blame and its pip line when adapters could not be injected here."""
    _peft(LoraConfig())


def _peft(config: LoraConfig) -> tuple[Any, Any]:
    try:
        import peft
        from peft import LoraConfig as PeftConfig
        from peft import inject_adapter_in_model
        from peft.import_utils import is_torchao_available

        if tuple(int(n) for n in peft.__version__.split(".")[:2]) < (0, 20):
            raise ImportError("too old")  # cannot wrap quantized linears
        is_torchao_available()  # raises for a torchao that is too old; PEFT itself asks only when a layer is wrapped
    except Exception as error:  # peft, or a package that it or transformers imports, can break in many ways
        names = ("torch", "peft", "transformers", "torchao", "torchvision")
        found = causes_of(error)
        versions = {name: version_of(name) for name in {*names, *(p for cause in found for p in cause.packages)}}
        raise DependencyError(why_not_imported("Training a LoRA", PEFT, found, versions)) from error
    peft_config = PeftConfig(
        r=config.rank,
        lora_alpha=config.effective_alpha,  # type: ignore[arg-type]
        lora_dropout=config.dropout,
        target_modules=config.pattern,
        init_lora_weights=False,
    )
    return peft_config, inject_adapter_in_model
