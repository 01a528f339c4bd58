"""Weight-only quantization of the frozen base: 8-bit values with a float32 scale for each group, or blocks of 4 bits.

Dynamic quantization of activations (torchao) has no straight-through gradient: LoRA gradients are wrong by tens of
percent, without an error (measured: int8 dynamic 95 %).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..checkpoint import dequantise
from ..checkpoint.ggml import BLOCKS
from ..config import Config, counted, internal
from ..errors import ConfigError
from ..model import block_of
from ..patterns import matching
from .linear import QuantizedLinear

_Q4_0 = "Q4_0"
_SCHEMES = ("fp8_e4m3fn", "int8", "fp8_e4m3fn_tensor", "fp8_e4m3fn_block128", _Q4_0)
_BLOCK = 128
"""values of a row that share a scale in fp8_e4m3fn_block128"""
_FP8_MAX = torch.finfo(torch.float8_e4m3fn).max
_VALUES_AT_ONCE = 1 << 20
"""values of a weight that are quantized at one time: 4 MiB in float32, which fits into a CPU's cache"""


@dataclass(frozen=True, kw_only=True)
class QuantizeConfig(Config):
    """The quantization requested by Fp8Quantize."""

    scheme: str = counted(
        _SCHEMES[0],
        "Format of the weights. fp8_e4m3fn: 8-bit float. int8: 8-bit integer, more exact, same size. One scale per "
        "output row. fp8_e4m3fn_tensor has one per weight, fp8_e4m3fn_block128 one per 128 values. Q4_0: 4 bits as "
        "in a GGUF, half the memory of 8 bits and twelve times the error of int8; experimental. Change it when "
        "Precision Audit (Wan) measures a smaller error, or for Q4_0 when 8 bits do not fit.",
        choices=_SCHEMES,
        refusal='Quantization scheme "{value}" is unknown.{nearest}',
    )
    keep_high_precision: bool = counted(
        True,
        "Keep embeddings, time embedding, head and norms unquantized. They are small and sensitive. Turn it off when "
        "every megabyte counts.",
    )
    """The setting concerns all weights except the blocks' linears, so modulation too."""
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
    """whether the blocks of VACE's second stream are quantized too"""

    def bytes_of(self, shape: Sequence[int]) -> int:
        """Returns the bytes of a quantized weight (out, in) with its scales."""
        if self.layout:
            return shape[0] * _row_bytes(shape[1])
        return shape[0] * shape[1] + 4 * math.prod(_groups(shape, self.scheme)[:-1])

    def without_values(self, shape: Sequence[int]) -> tuple[Tensor, Tensor | None]:
        """Returns a quantized weight (out, in) and its scales (see `quantized`) on the meta device."""
        if self.layout:
            return torch.empty(shape[0], _row_bytes(shape[1]), dtype=torch.uint8, device="meta"), None
        stored = torch.int8 if self.scheme == "int8" else torch.float8_e4m3fn
        values = torch.empty(tuple(shape), dtype=stored, device="meta")
        return values, torch.empty(_groups(shape, self.scheme)[:-1], device="meta")

    @property
    def layout(self) -> str:
        """The argument `layout` of `dequantise`."""
        return _Q4_0 if self.scheme == _Q4_0 else ""

    @property
    def product_dtypes(self) -> set[torch.dtype]:
        """The 8-bit dtypes of products with such weights; empty if blocks of a row have scales."""
        if self.scheme == "int8":
            return {torch.int8}
        return set() if self.scheme in ("fp8_e4m3fn_block128", _Q4_0) else {torch.float8_e4m3fn}

    def check_names(self, names: Sequence[str]) -> None:
        """Match the patterns with all names of a model's linears at once; `selects` then uses the cached matches.

        Raises ConfigError for an invalid regular expression, and for one that takes too long to match.
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
    """Replaces each selected linear below `module` by a `QuantizedLinear` on its device; returns their number.

    `prefix`: name of `module` in the model. Call it before adapters are injected.
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
        layer: nn.Linear = getattr(module.get_submodule(owner), leaf)
        made = QuantizedLinear(*quantized(layer.weight.detach(), config.scheme), bias=False, layout=config.layout)
        made.bias = layer.bias
        setattr(module.get_submodule(owner), leaf, made)
    return len(chosen)


def quantized(weight: Tensor, scheme: str) -> tuple[Tensor, Tensor | None]:
    """Returns packed values (out, in) and scales for `dequantise`, from a weight (out, in) of any float dtype.

    Scales are float32: (out,) for rows; () for the complete weight; or (out, blocks). They are computed in the weight's
    dtype, and everything else in float32: bit for bit as in torchao 0.18, except for rows with a scale of 0, which
    become NaN in its fp8. Q4_0 has its scales in its blocks, bit for bit as in gguf 0.19; ConfigError where 32 does not
    divide `in`.
    """
    if scheme == _Q4_0:
        return _in_blocks_of_4_bits(weight), None
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
    # In pieces, because a complete float32 copy would take twice the memory of a bf16 weight.
    for start in range(0, len(weight), rows):
        part = slice(start, start + rows)
        values[part] = _scaled(weight[part], scale if scale.numel() == 1 else scale[part], scheme)
    return values, scale.view(grouped.shape[:-1])


def _in_blocks_of_4_bits(weight: Tensor) -> Tensor:
    """Returns GGUF blocks (out, bytes) uint8: 32 values each, a half-precision scale and integers of -8 to 7."""
    block, size = BLOCKS[_Q4_0].values, BLOCKS[_Q4_0].size_bytes
    if weight.shape[1] % block:
        raise ConfigError(f"Q4_0 has blocks of {block} values, and a layer is {weight.shape[1]} wide. Choose int8.")
    found = torch.empty(len(weight), weight.shape[1] // block, size, dtype=torch.uint8, device=weight.device)
    rows = max(1, _VALUES_AT_ONCE // weight.shape[1])
    for start in range(0, len(weight), rows):
        values = weight[start : start + rows].to(torch.float32).unflatten(1, (-1, block))
        largest = values.gather(2, values.abs().argmax(2, keepdim=True))
        scale = largest / -8
        codes = (values * torch.where(scale == 0, 0, 1 / scale) + 8.5).trunc_().to(torch.uint8).clamp_(0, 15)
        low, high = codes.chunk(2, dim=2)
        part = found[start : start + rows]
        part[..., :2] = scale.to(torch.float16).view(torch.uint8)
        part[..., 2:] = low | high << 4
    return found.flatten(1)


def _row_bytes(columns: int) -> int:
    return -(-columns // BLOCKS[_Q4_0].values) * BLOCKS[_Q4_0].size_bytes


def _scaled(weight: Tensor, scale: Tensor, scheme: str) -> Tensor:
    """Returns some rows of a weight divided by `scale`, in float32, limited to the range of `scheme`."""
    found = weight.to(torch.float32, copy=True).view(*scale.shape[:-1], -1)
    if scheme == "int8":
        found.mul_(1 / scale).round_().clamp_(-128, 127)
    else:
        found.div_(scale).clamp_(-_FP8_MAX, _FP8_MAX)
    return found.view(weight.shape)


def _groups(shape: Sequence[int], scheme: str) -> tuple[int, ...]:
    """Returns a shape for a weight (out, in) whose last dimension has one scale."""
    rows, columns = shape
    if scheme == "fp8_e4m3fn_tensor":
        return (rows * columns,)
    if scheme == "fp8_e4m3fn_block128":
        size = math.gcd(columns, _BLOCK)
        return rows, columns // size, size
    return rows, columns


@dataclass(frozen=True, kw_only=True)
class QuantizedBy(Config):
    """Identifies the code that quantized the weights of a run, since another version may compute other values."""

    weights: str
    """digest of a fixed weight after quantizing and dequantizing"""
    torchao: str = ""
    """version of torchao, for older runs that used it"""


def quantized_by(config: QuantizeConfig, dtype: torch.dtype) -> QuantizedBy:
    """Returns the identity of this version's quantization, from a fixed weight in `dtype`."""
    known = torch.randn(64, 128, generator=torch.Generator().manual_seed(1)).to(dtype)
    values = dequantise(*quantized(known, config.scheme), dtype, layout=config.layout)
    return QuantizedBy(weights=hashlib.sha256(values.float().contiguous().numpy().tobytes()).hexdigest()[:16])


def check_trainable_untouched(model: nn.Module) -> None:
    """Asserts that every LoRA parameter and every trained one is trained, float32, and not quantized."""
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad and "lora_" not in name:
            continue
        sound = type(parameter) is nn.Parameter and parameter.dtype == torch.float32 and parameter.requires_grad
        assert sound, f"{name} is not a plain float32 trainable parameter"
