"""Weight-only quantization of the frozen base through torchao.

Weight-only on purpose: dynamic activation quantization rounds activations without a straight-through gradient, and
LoRA gradients come out wrong by tens of percent without any error message (measured: int8 dynamic 95 %).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..config import Config, setting
from ..errors import DependencyError
from ..model import block_of
from ..model.modulate import plain_weight
from ..packages import causes_of, torchao_for, torchao_problem, version_of, why_not_imported
from ..patterns import check_patterns

__all__ = [
    "SCHEMES",
    "QuantizeConfig",
    "QuantizedBy",
    "check_torchao",
    "check_torchao_version",
    "check_trainable_untouched",
    "quantize_block",
    "quantized_by",
]

SCHEMES = ("fp8_e4m3fn", "int8")


@dataclass(frozen=True, kw_only=True)
class QuantizeConfig(Config):
    """What Fp8Quantize asks for."""

    scheme: str = setting(
        SCHEMES[0],
        "fp8_e4m3fn: 8-bit float. int8: 8-bit integer, more exact, same size. One scale per output row.",
        choices=SCHEMES,
        refusal='Quantization scheme "{value}" is unknown.{nearest}',
    )
    keep_high_precision: bool = setting(
        True, "Leave embeddings, time path, head and norms as they are. They are small and sensitive."
    )
    """modulation too: everything outside the blocks' linears"""
    include: str = setting("", "Regular expression: only linears whose name matches become 8-bit. Empty: all.")
    exclude: str = setting("", 'Regular expression: linears to leave alone, for example "blocks\\.0\\.". Empty: none.')
    vace_blocks: bool = False
    """the layers of VACE's second stream too; runs begun before there was a choice left them alone"""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("include", "exclude"):
            check_patterns([getattr(self, name)], (), name, whole=False)

    def check_names(self, names: Sequence[str]) -> None:
        """Raises ConfigError when the patterns cannot be matched with the names of a model's linears in good time."""
        for name in ("include", "exclude"):
            check_patterns([getattr(self, name)], names, name, whole=False)

    def selects(self, name: str) -> bool:
        """Whether the linear `name` (original Wan name, without .weight) becomes 8-bit."""
        if "lora_" in name:
            return False
        found = block_of(name)
        if self.keep_high_precision and (found is None or (found.stream == "vace_blocks" and not self.vace_blocks)):
            return False
        if self.include and not re.search(self.include, name):
            return False
        return not (self.exclude and re.search(self.exclude, name))


def quantize_block(module: nn.Module, prefix: str, config: QuantizeConfig) -> int:
    """Quantize the selected linears below `module` in place; `prefix` is its name in the model. Returns how many.

    Call it before LoRA is injected: a filter-less torchao call after injection would freeze and zero the adapters.
    """
    quantize, scheme = _torchao(config.scheme)
    chosen = {
        id(layer)
        for name, layer in module.named_modules()
        if isinstance(layer, nn.Linear) and config.selects(f"{prefix}.{name}".strip("."))
    }
    if chosen:
        quantize(module, scheme, filter_fn=lambda layer, _name: id(layer) in chosen)
    return len(chosen)


@dataclass(frozen=True, kw_only=True)
class QuantizedBy(Config):
    """Which torchao made the weights of a run, and what it makes of a known weight: two versions may make the same."""

    torchao: str
    weights: str
    """digest of the known weight, quantized and unpacked"""


def quantized_by(config: QuantizeConfig, dtype: torch.dtype) -> QuantizedBy:
    """Returns the mark of this installation for a base that is quantized from `dtype`.

    int8 from bfloat16 differs between torchao 0.17 and 0.18; fp8, and int8 from float32, are the same from 0.16 on.
    """
    quantize, scheme = _torchao(config.scheme)
    known = torch.randn(64, 128, generator=torch.Generator().manual_seed(1)).to(dtype)
    layer = nn.Linear(128, 64, bias=False, device="meta").requires_grad_(False)
    layer.weight = nn.Parameter(known, requires_grad=False)
    quantize(nn.ModuleList([layer]), scheme)
    values = plain_weight(layer).float().contiguous().numpy().tobytes()
    return QuantizedBy(torchao=version_of("torchao"), weights=hashlib.sha256(values).hexdigest()[:16])


def check_torchao() -> None:
    """Raises DependencyError with the pip line when weights could not be quantized here."""
    _torchao(SCHEMES[0])


def check_torchao_version() -> None:
    """Raises what `check_torchao` raises, from the versions alone.

    Nothing is imported, so a server may ask before a graph is queued.
    """
    if problem := torchao_problem(torch.__version__):
        raise DependencyError(problem)


def _torchao(scheme: str) -> tuple[Callable[..., Any], Any]:
    check_torchao_version()
    try:
        from torchao.quantization import (
            Float8WeightOnlyConfig,
            Int8WeightOnlyConfig,
            quantize_,
        )
    except Exception as error:  # a broken torchao fails in many ways at import, all mean the same to a user
        versions = {name: version_of(name) for name in ("torch", "torchao")}
        found = causes_of(error)
        raise DependencyError(
            why_not_imported("Fp8Quantize", torchao_for(torch.__version__), found, versions)
        ) from error
    return quantize_, Float8WeightOnlyConfig() if scheme == "fp8_e4m3fn" else Int8WeightOnlyConfig()


def check_trainable_untouched(model: nn.Module) -> None:
    """Assert that no trainable parameter was quantized, frozen by accident, or is not finite."""
    for name, parameter in model.named_parameters():
        if "lora_" not in name:
            continue
        sound = type(parameter) is nn.Parameter and parameter.dtype == torch.float32 and parameter.requires_grad
        assert sound, f"{name} is not a plain float32 trainable parameter"
