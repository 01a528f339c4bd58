"""Tells what each base weight rests in once it is loaded, and its bytes: what a plan makes of what a file holds."""

from __future__ import annotations

import torch
from torch import Tensor

from ..checkpoint import StoredWeight
from ..model import Numerics, block_of
from .plan import ModelPlan, WanFile

__all__ = ["packed_dtypes", "quantized_anew", "resting_bytes", "stays_stored", "storage_dtype", "unpacked_kinds"]

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
