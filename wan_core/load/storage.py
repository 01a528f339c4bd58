"""The dtype, layout and bytes of each base weight in memory, from the plan and the file."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..checkpoint import StoredWeight
from ..model import Numerics, block_of
from ..precision import QuantizedLinear, torch_dtype
from .model_plan import ModelPlan, WanFile

_CALLED = {"F8_E4M3": "fp8_e4m3fn", "F8_E5M2": "fp8_e5m2", "I8": "int8"}
"""8-bit dtype of a file -> name of the quantization scheme"""
_IMAGE_NORMS = ("img_emb.proj.0.", "img_emb.proj.4.")


def stays_stored(plan: ModelPlan, name: str, source: StoredWeight) -> bool:
    """Returns whether the weight `name` stays as stored: a block's linear in a supported quantized format."""
    # Linears outside of the blocks are few and compute in wider dtypes, so loading dequantizes them.
    if not source.can_stay or len(source.shape) != 2 or not name.endswith(".weight") or block_of(name) is None:
        return False
    return plan.base_precision == "as in file" and not quantized_anew(plan, name, source)


def quantized_anew(plan: ModelPlan, name: str, source: StoredWeight) -> bool:
    """Returns whether the plan quantizes the weight `name`."""
    linear = name.removesuffix(".weight")
    return linear != name and len(source.shape) == 2 and plan.quantize is not None and plan.quantize.selects(linear)


def _kinds(plan: ModelPlan, found: WanFile) -> Iterator[tuple[str, StoredWeight, str]]:
    """Yields (name, weight, kind) of each linear. Kinds: "new", quantized by the plan; "kept", stays as stored; ""."""
    for name, weight in found.weights.items():
        if len(weight.shape) == 2 and name.endswith(".weight"):
            kept = stays_stored(plan, name, weight)
            yield name, weight, "kept" if kept else "new" if quantized_anew(plan, name, weight) else ""


class BaseWords(NamedTuple):
    """The base of a LoRA in words, for metadata; the most frequent word first if linears differ."""

    precision: str
    """compute dtype of linears: bf16, fp16 or fp32"""
    quantization: str
    """storage of the blocks' linears: none, a scheme of Fp8 / Int8 Quantize, or the file's quantization"""
    stored: str
    """storage in the file"""


def base_words(plan: ModelPlan, found: WanFile) -> BaseWords:
    """Returns the words for the linears of a file's blocks under the plan."""
    stored, packed = Counter[str](), Counter[str]()
    for name, weight, kind in _kinds(plan, found):
        if block_of(name) is not None:
            stored[weight.dtype] += 1
            if kind == "new" and plan.quantize is not None:
                packed[plan.quantize.scheme] += 1
            elif kind:
                packed[_CALLED.get(weight.dtype, weight.dtype)] += 1
    precision = next(name for name in ("bf16", "fp16", "fp32") if torch_dtype(name) == found.compute_dtype)
    return BaseWords(precision, _listed(packed) or "none", _listed(stored))


def _listed(words: Counter[str]) -> str:
    return ", ".join(word for word, _ in words.most_common())


def packed_dtypes(plan: ModelPlan, found: WanFile) -> set[torch.dtype]:
    """Returns the 8-bit dtypes in which products with quantized weights can run, if they have a scale per weight or
    row.

    Weights with other scales are dequantized for the product.
    """
    dtypes: set[torch.dtype] = set()
    for _, weight, kind in _kinds(plan, found):
        if kind == "new" and plan.quantize is not None:
            dtypes |= plan.quantize.product_dtypes
        elif kind and weight.product_dtype is not None:
            dtypes.add(weight.product_dtype)
    return dtypes


def float8_kinds(plan: ModelPlan, found: WanFile) -> list[str]:
    """Returns the quantizations of the weights that are kept in memory with float8 values or scales."""
    kinds: set[str] = set()
    for _, weight, kind in _kinds(plan, found):
        if kind == "new" and plan.quantize is not None:
            kinds |= {plan.quantize.scheme} - {"int8", "Q4_0"}
        elif kind and weight.has_float8:
            kinds.add(_CALLED.get(weight.dtype, weight.dtype))
    return sorted(kinds)


def unpacked_kinds(plan: ModelPlan, found: WanFile) -> list[str]:
    """Returns the GGUF types of those linears in blocks that loading dequantizes; [] for other files."""
    return sorted(
        {
            weight.dtype
            for name, weight, kind in _kinds(plan, found)
            if not kind and weight.gguf and not weight.is_plain and block_of(name) is not None
        }
    )


def storage_dtype(name: str, numerics: Numerics, stored: str) -> torch.dtype:
    """Returns the storage dtype of a base weight; `stored`: its dtype in the file (F32, F16, BF16).

    Norms and modulation tables: float32. Time embedding and head, if they compute in another dtype than the linears:
    the file's dtype. All others: the compute dtype.
    """
    # Norms and modulation tables are small and sensitive to rounding.
    if name.endswith(("modulation", "emb_pos")) or ".norm" in name or name.startswith(_IMAGE_NORMS):
        return torch.float32
    part = name.split(".")[0]
    computed = {"time_embedding": numerics.time, "time_projection": numerics.time, "head": numerics.head}.get(part)
    # Casting to a wider dtype is exact, so storing the wider dtype would only take memory.
    if computed in (None, numerics.compute):
        return numerics.compute
    return {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float32}.get(
        stored, numerics.compute
    )


def offloaded_bytes(plan: ModelPlan, found: WanFile, numerics: Numerics, name: str, parameter: Tensor) -> int:
    """Returns the bytes of the loaded weight `name` with its frozen LoRAs; `parameter` may be on the meta device."""
    beside = found.beside.get(name, 0)
    if stays_stored(plan, name, found.weights[name]):
        return found.weights[name].stored_bytes + beside
    if plan.quantize is not None and quantized_anew(plan, name, found.weights[name]):
        return plan.quantize.bytes_of(parameter.shape) + beside
    return parameter.numel() * storage_dtype(name, numerics, found.weights[name].dtype).itemsize + beside


class PackedForm(NamedTuple):
    """The form of a quantized weight: its layout, and shape and dtype of its tensors."""

    layout: str
    """the argument `layout` of `dequantise`"""

    tensors: tuple[tuple[torch.Size, torch.dtype] | None, ...]
    """(shape, dtype) of the values, the scale, and the scale of the complete weight; None for a missing tensor"""

    @classmethod
    def of(cls, layout: str, *tensors: Tensor | None) -> PackedForm:
        return cls(layout, tuple(None if one is None else (one.shape, one.dtype) for one in tensors))

    def without_values(self, bias: Tensor | None) -> QuantizedLinear:
        """Returns a linear of this form on the meta device."""
        values, scale, whole = (
            None if one is None else torch.empty(one[0], dtype=one[1], device="meta") for one in self.tensors
        )
        assert values is not None
        made = QuantizedLinear(values, scale, bias=False, whole_scale=whole, layout=self.layout)
        if bias is not None:
            made.bias = nn.Parameter(bias.detach(), requires_grad=False)
        return made


PackedForms = tuple[tuple[str, PackedForm], ...]
"""(name of a weight within its block, form) of the quantized linears"""


def packed_forms(plan: ModelPlan, found: WanFile) -> PackedForms:
    """Returns the form of each quantized linear of a block; the most frequent one if blocks differ."""
    forms: defaultdict[str, Counter[PackedForm | None]] = defaultdict(Counter)
    for name, weight, kind in _kinds(plan, found):
        if (block := block_of(name)) is None:
            continue
        form = None
        if kind == "new" and plan.quantize is not None:
            form = PackedForm.of(plan.quantize.layout, *plan.quantize.without_values(weight.shape), None)
        elif kind:
            form = PackedForm.of(weight.layout, *weight.without_values())
        forms[block.inside][form] += 1
    usual = {inside: counted.most_common(1)[0][0] for inside, counted in forms.items()}
    return tuple((inside, form) for inside, form in sorted(usual.items()) if form is not None)


def pack_without_values(model: nn.Module, forms: PackedForms) -> None:
    """Replaces each linear of a block that has a form by a `QuantizedLinear`; `model` is on the meta device."""
    packed = dict(forms)
    for name, module in list(model.named_modules()) if packed else ():
        block = block_of(f"{name}.weight")
        if block is not None and block.inside in packed and type(module) is nn.Linear:
            owner, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(owner), leaf, packed[block.inside].without_values(module.bias))
