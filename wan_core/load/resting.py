"""Tells what each base weight rests in once it is loaded, and its bytes: what a plan makes of what a file holds."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import torch
from torch import Tensor

from ..checkpoint import StoredWeight
from ..model import Numerics, block_of
from ..precision import torch_dtype
from .plan import ModelPlan, WanFile

_CALLED = {"F8_E4M3": "fp8_e4m3fn", "F8_E5M2": "fp8_e5m2", "I8": "int8"}
"""packed dtypes of a file as the schemes made here are called; the others are called as they are"""
_IMAGE_NORMS = ("img_emb.proj.0.", "img_emb.proj.4.")


def stays_stored(plan: ModelPlan, name: str, source: StoredWeight) -> bool:
    """Returns whether the weight `name` rests as its file has it: a linear of a block that can stay packed.

    Outside the blocks linears are few, and the model computes them in other dtypes: those are dequantised once.
    """
    if not source.can_stay or len(source.shape) != 2 or not name.endswith(".weight") or block_of(name) is None:
        return False
    return plan.base_precision == "as in file" and not quantized_anew(plan, name, source)


def quantized_anew(plan: ModelPlan, name: str, source: StoredWeight) -> bool:
    """Returns whether the weight `name` is one that the plan's Fp8Quantize makes packed."""
    linear = name.removesuffix(".weight")
    return linear != name and len(source.shape) == 2 and plan.quantize is not None and plan.quantize.selects(linear)


class BaseWords(NamedTuple):
    """The base a LoRA was trained on, in words. Where linears differ, all words, the most frequent first."""

    precision: str
    """what the linears compute in: bf16, fp16 or fp32"""
    quantization: str
    """how those of the blocks rest: none, a scheme of Fp8 / Int8 Quantize, or what the file packs them as"""
    stored: str
    """how the file stores them"""


def base_words(plan: ModelPlan, found: WanFile) -> BaseWords:
    """Returns what the plan makes of the linears of a file's blocks."""
    stored, packed = Counter[str](), Counter[str]()
    for name, weight in found.weights.items():
        if len(weight.shape) != 2 or not name.endswith(".weight") or block_of(name) is None:
            continue
        stored[weight.dtype] += 1
        if plan.quantize is not None and quantized_anew(plan, name, weight):
            packed[plan.quantize.scheme] += 1
        elif stays_stored(plan, name, weight):
            packed[_CALLED.get(weight.dtype, weight.dtype)] += 1
    precision = next(name for name in ("bf16", "fp16", "fp32") if torch_dtype(name) == found.compute_dtype)
    return BaseWords(precision, _listed(packed) or "none", _listed(stored))


def _listed(words: Counter[str]) -> str:
    return ", ".join(word for word, _ in words.most_common())


def packed_dtypes(plan: ModelPlan, found: WanFile) -> set[torch.dtype]:
    """Returns the 8-bit dtypes of packed weights that products can be computed in.

    Of a file's scales one per weight or row is taken for granted; a weight with others computes unpacked.
    """
    dtypes: set[torch.dtype] = set()
    for name, weight in found.weights.items():
        if plan.quantize is not None and quantized_anew(plan, name, weight):
            dtypes |= plan.quantize.product_dtypes
        elif weight.product_dtype is not None and stays_stored(plan, name, weight):
            dtypes.add(weight.product_dtype)
    return dtypes


def unpacked_kinds(plan: ModelPlan, found: WanFile) -> list[str]:
    """Returns how a GGUF stores those linears of the blocks that are unpacked when it is loaded; [] for any other."""
    return sorted(
        {
            weight.dtype
            for name, weight in found.weights.items()
            if weight.gguf and len(weight.shape) == 2 and block_of(name) is not None and not weight.is_plain
            if not stays_stored(plan, name, weight) and not quantized_anew(plan, name, weight)
        }
    )


def storage_dtype(name: str, numerics: Numerics, stored: str) -> torch.dtype:
    """Returns what a base weight rests in; `stored` is the file's own dtype (F32, F16, BF16).

    Norms and modulation tables (tiny, sensitive) rest in float32. The time path and the head rest as in the file where
    the policy computes them wider than the linears: exact, and no larger. Everything else rests in the compute dtype.
    """
    if name.endswith(("modulation", "emb_pos")) or ".norm" in name or name.startswith(_IMAGE_NORMS):
        return torch.float32
    part = name.split(".")[0]
    computed = {"time_embedding": numerics.time, "time_projection": numerics.time, "head": numerics.head}.get(part)
    if computed in (None, numerics.compute):
        return numerics.compute
    return {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float32}.get(
        stored, numerics.compute
    )


def resting_bytes(plan: ModelPlan, found: WanFile, numerics: Numerics, name: str, parameter: Tensor) -> int:
    """Returns what the base weight `name` takes in memory once it is loaded, with the frozen LoRAs beside it.

    `parameter` has its shape and may be meta.
    """
    beside = found.beside.get(name, 0)
    if stays_stored(plan, name, found.weights[name]):
        return found.weights[name].stored_bytes + beside
    if plan.quantize is not None and quantized_anew(plan, name, found.weights[name]):
        return plan.quantize.bytes_of(parameter.shape) + beside
    return parameter.numel() * storage_dtype(name, numerics, found.weights[name].dtype).itemsize + beside
