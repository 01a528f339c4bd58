"""Weight-only quantization of the frozen base: 8-bit values, and a float32 scale for each group of values.

Weight-only on purpose: dynamic activation quantization rounds activations without a straight-through gradient, and
LoRA gradients come out wrong by tens of percent without any error message (measured: int8 dynamic 95 %).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..checkpoint import dequantise
from ..config import Config, counted, internal
from ..model import block_of
from ..patterns import matching
from .linear import QuantizedLinear

_SCHEMES = ("fp8_e4m3fn", "int8", "fp8_e4m3fn_tensor", "fp8_e4m3fn_block128")
_BLOCK = 128
"""values of a row that share a scale in the last of them"""
_FP8_MAX = torch.finfo(torch.float8_e4m3fn).max
_VALUES_AT_ONCE = 1 << 20
"""values of a weight that are float32 at one time while it is quantized: 4 MiB, which a processor's cache holds"""


@dataclass(frozen=True, kw_only=True)
class QuantizeConfig(Config):
    """The quantization that Fp8Quantize asks for."""

    scheme: str = counted(
        _SCHEMES[0],
        "8-bit format of the weights. fp8_e4m3fn: 8-bit float. int8: 8-bit integer, more exact, same size. One scale "
        "per output row. fp8_e4m3fn_tensor has one per weight, fp8_e4m3fn_block128 one per 128 values. Change it when "
        "Precision Audit (Wan) measures a smaller error for another.",
        choices=_SCHEMES,
        refusal='Quantization scheme "{value}" is unknown.{nearest}',
    )
    keep_high_precision: bool = counted(
        True,
        "Keep embeddings, time embedding, head and norms unquantized. They are small and sensitive. Turn it off when "
        "every megabyte counts.",
    )
    """modulation too: everything outside the blocks' linears"""
    include: str = counted(
        "",
        "Regular expression: only linear layers whose name matches become 8-bit. Empty: all. Set it to quantize a part "
        "of the model.",
    )
    exclude: str = counted(
        "",
        'Regular expression: linear layers that are not quantized, for example "blocks\\.0\\.". Empty: none. Set it '
        "for layers that lose too much.",
    )
    vace_blocks: bool = internal(False, "changed")
    """the layers of VACE's second stream too, where a model has one"""

    def bytes_of(self, shape: Sequence[int]) -> int:
        """Returns what a weight (out, in) takes once it is quantized, its scales too."""
        return shape[0] * shape[1] + 4 * math.prod(_groups(shape, self.scheme)[:-1])

    def without_values(self, shape: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Returns a quantized weight (out, in) and its scales, as `quantized` does, on the meta device."""
        stored = torch.int8 if self.scheme == "int8" else torch.float8_e4m3fn
        values = torch.empty(tuple(shape), dtype=stored, device="meta")
        return values, torch.empty(_groups(shape, self.scheme)[:-1], device="meta")

    @property
    def product_dtypes(self) -> set[torch.dtype]:
        """The 8-bit dtypes in which products with such weights can be computed: none where blocks have scales."""
        if self.scheme == "int8":
            return {torch.int8}
        return set() if self.scheme == "fp8_e4m3fn_block128" else {torch.float8_e4m3fn}

    def check_names(self, names: Sequence[str]) -> None:
        """Asks which of a model's linears the patterns match, all in one, so that `selects` knows.

        Raises ConfigError for what is no regular expression, or cannot be matched in good time.
        """
        for which in ("include", "exclude"):
            self._matched(which, names)

    def _matched(self, which: str, names: Sequence[str]) -> frozenset[str]:
        pattern = getattr(self, which)
        return matching([pattern], names, which, whole=False)[0] if pattern else frozenset()

    def selects(self, name: str) -> bool:
        """Returns whether the linear `name` (original Wan name, without .weight) becomes 8-bit."""
        if "lora_" in name:
            return False
        found = block_of(name)
        if self.keep_high_precision and (found is None or (found.stream == "vace_blocks" and not self.vace_blocks)):
            return False
        if self.include and name not in self._matched("include", [name]):
            return False
        return name not in self._matched("exclude", [name])


def quantize_block(module: nn.Module, prefix: str, config: QuantizeConfig) -> int:
    """Put a `QuantizedLinear` in the place of each selected linear below `module`, where its weights lie.

    `prefix` is the name of `module` in the model. Returns how many. Call it before LoRA is injected.
    """
    linears = {
        f"{prefix}.{name}".strip("."): name
        for name, layer in module.named_modules()
        if name and type(layer) is nn.Linear
    }
    config.check_names(list(linears))
    chosen = [name for whole, name in linears.items() if config.selects(whole)]
    for name in chosen:
        owner, _, leaf = name.rpartition(".")
        parent = module.get_submodule(owner)
        setattr(parent, leaf, _quantized_linear(getattr(parent, leaf), config.scheme))
    return len(chosen)


def _quantized_linear(layer: nn.Linear, scheme: str) -> QuantizedLinear:
    made = QuantizedLinear(*quantized(layer.weight.detach(), scheme), bias=False)
    made.bias = layer.bias
    return made


def quantized(weight: Tensor, scheme: str) -> tuple[Tensor, Tensor]:
    """Returns a weight (out, in) of any float dtype as `dequantise` takes it: values of 8 bits, and their scales.

    Scales are float32: (out,), one per row; (), one in all; or (out, blocks). They are found in the weight's own dtype
    and all else is float32, as torchao 0.18 does it: to the last bit its weights, but for rows whose scale is zero
    there: NaN in its fp8.
    """
    grouped = weight.reshape(_groups(weight.shape, scheme))
    low, high = grouped.aminmax(dim=-1, keepdim=True)
    largest = torch.maximum(-low, high)
    if scheme == "int8":
        scale = (largest / 127.5).clamp(min=torch.finfo(torch.float32).eps).to(torch.float32)
    else:
        scale, exact = (largest / _FP8_MAX).to(torch.float32), largest.to(torch.float32) / _FP8_MAX
        scale = torch.where(scale > 0, scale, torch.where(exact > 0, exact, 1.0))
    stored = torch.int8 if scheme == "int8" else torch.float8_e4m3fn
    values = torch.empty(weight.shape, dtype=stored, device=weight.device)
    rows = max(1, _VALUES_AT_ONCE // weight.shape[1])
    for start in range(0, len(weight), rows):  # a complete float32 copy would be twice a bf16 weight
        part = slice(start, start + rows)
        values[part] = _scaled(weight[part], scale if scale.numel() == 1 else scale[part], scheme)
    return values, scale.view(grouped.shape[:-1])


def _scaled(weight: Tensor, scale: Tensor, scheme: str) -> Tensor:
    """Some rows of a weight in float32, of values that the 8 bits of `scheme` hold, with the scales of these rows."""
    found = weight.to(torch.float32, copy=True).view(*scale.shape[:-1], -1)
    if scheme == "int8":
        found.mul_(1 / scale).round_().clamp_(-128, 127)
    else:
        found.div_(scale).clamp_(-_FP8_MAX, _FP8_MAX)
    return found.view(weight.shape)


def _groups(shape: Sequence[int], scheme: str) -> tuple[int, ...]:
    """Returns the shape of a weight (out, in) in which the last dimension shares a scale."""
    rows, columns = shape
    if scheme == "fp8_e4m3fn_tensor":
        return (rows * columns,)
    if scheme == "fp8_e4m3fn_block128":
        size = math.gcd(columns, _BLOCK)
        return rows, columns // size, size
    return rows, columns


@dataclass(frozen=True, kw_only=True)
class QuantizedBy(Config):
    """The code that quantized 8-bit weights of a run: another version may quantize the same file to other values."""

    weights: str
    """digest of a known weight, quantized and unpacked"""
    torchao: str = ""
    """the version that made them, of runs begun when torchao did"""


def quantized_by(config: QuantizeConfig, dtype: torch.dtype) -> QuantizedBy:
    """Returns a digest of what this version makes of fixed values of `dtype`: it changes with the quantized weights."""
    known = torch.randn(64, 128, generator=torch.Generator().manual_seed(1)).to(dtype)
    values = dequantise(*quantized(known, config.scheme), dtype).float().contiguous().numpy().tobytes()
    return QuantizedBy(weights=hashlib.sha256(values).hexdigest()[:16])


def check_trainable_untouched(model: nn.Module) -> None:
    """Assert that no trainable parameter was quantized, frozen by accident, or is not finite."""
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad and "lora_" not in name:
            continue
        sound = type(parameter) is nn.Parameter and parameter.dtype == torch.float32 and parameter.requires_grad
        assert sound, f"{name} is not a plain float32 trainable parameter"
