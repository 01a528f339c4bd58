"""A look at a saved LoRA file: whether ComfyUI's loader has a place for every name, and what it changes."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..checkpoint import TensorFile
from ..lora.adapters import Hadamard, Kronecker, LowRank
from ..model import block_of

_PREFIX = "diffusion_model."
_PAIR, _LOHA = ("lora_A.weight", "lora_B.weight"), ("hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b")
_WHOLE = tuple(
    frozenset(parts)
    for parts in (
        (*_PAIR, "alpha"),
        (*_PAIR, "alpha", "dora_scale"),
        (*_LOHA, "alpha"),
        ("lokr_w1", "lokr_w2", "alpha"),
        ("lokr_w1", "lokr_w2_a", "lokr_w2_b", "alpha"),
        ("oft_blocks",),
        (),
    )
)
"""what a file holds of one linear, kind by kind, besides whole differences; of a norm there are only those"""
_OFFSETS = ("diff", "diff_b")
_PARTS = sorted({part for parts in _WHOLE for part in parts} | {*_OFFSETS})


@dataclass(frozen=True)
class LoraLook:
    """The contents of a LoRA file."""

    unplaced: tuple[str, ...]
    """names that ComfyUI would pass over: the model has no weight of that name, or parts of it are missing"""
    weights: tuple[str, ...]
    """original names of the weights it changes, so far as ComfyUI takes their names"""
    updates: dict[str, float]
    """block -> Frobenius norm of its change at strength 1, biases and norms too; "other" is what lies in no block. Of a
    DoRA that of its pair alone, of an OFT that of its skew matrices: what they change depends on the weights too"""


def look_at_lora(file: Path, weights: Collection[str]) -> LoraLook:
    """Returns what the LoRA in `file` changes of a model with these `weights` (original Wan names).

    ComfyUI knows a linear as `diffusion_model.<name>` where the model has `<name>.weight`.
    """
    squares: dict[str, float] = {}
    placed: list[str] = []
    with TensorFile(file) as tensors:
        modules: dict[str, dict[str, str]] = {}
        unplaced: list[str] = []
        for key in sorted(tensors.header.tensors):
            part = next((part for part in _PARTS if key.endswith(f".{part}")), None)
            if part is None:
                unplaced.append(key)
            else:
                modules.setdefault(key.removesuffix(f".{part}"), {})[part] = key
        for module, parts in sorted(modules.items()):
            name = module.removeprefix(_PREFIX)
            if name == module or f"{name}.weight" not in weights or frozenset(parts).difference(_OFFSETS) not in _WHOLE:
                unplaced.append(module)
                continue
            placed.append(f"{name}.weight")
            found = {part: tensors.read_as(key, torch.float32) for part, key in parts.items()}
            norms = [float(found.pop(part).norm()) for part in _OFFSETS if part in found]
            norm = math.hypot(*norms, _norm(found) if found else 0.0)
            place = block_of(name)
            block = f"{place.stream}.{place.number}" if place is not None else "other"
            squares[block] = squares.get(block, 0.0) + norm**2
    updates = {block: round(math.sqrt(square), 6) for block, square in squares.items()}
    return LoraLook(tuple(unplaced), tuple(placed), updates)


def _norm(parts: Mapping[str, Tensor]) -> float:
    """Returns the norm of the change of one linear."""
    if (blocks := parts.get("oft_blocks")) is not None:
        return float((blocks - blocks.transpose(1, 2)).norm())
    alpha = float(parts["alpha"])
    if "lora_A.weight" in parts:
        down, up = (parts[part] for part in _PAIR)
        return LowRank(down, up, alpha / down.shape[0]).norm()
    if "hada_w1_a" in parts:
        tall1, wide1, tall2, wide2 = (parts[part] for part in _LOHA)
        return Hadamard(wide1, tall1, wide2, tall2, alpha / wide1.shape[0]).norm()
    if "lokr_w2" in parts:
        return Kronecker(parts["lokr_w1"], parts["lokr_w2"], 1.0).norm()
    second = parts["lokr_w2_a"] @ parts["lokr_w2_b"]
    return Kronecker(parts["lokr_w1"], second, alpha / len(parts["lokr_w2_b"])).norm()
