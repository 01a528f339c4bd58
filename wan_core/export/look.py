"""A look at a saved LoRA file: whether ComfyUI's loader has a place for every name, and what it changes."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from ..model import block_of

__all__ = ["LoraLook", "look_at_lora"]

_PREFIX = "diffusion_model."
_DOWN, _UP, _ALPHA = ".lora_A.weight", ".lora_B.weight", ".alpha"


@dataclass(frozen=True)
class LoraLook:
    """What a LoRA file holds."""

    unplaced: tuple[str, ...]
    """names that ComfyUI would pass over: the model has no weight of that name, or the pair is not whole"""
    updates: dict[str, float]
    """block -> Frobenius norm of its change at strength 1; "other" is what lies in no block"""


def look_at_lora(file: Path, weights: Collection[str]) -> LoraLook:
    """Returns what the LoRA in `file` changes of a model with these `weights` (original Wan names).

    ComfyUI knows a linear as `diffusion_model.<name>` where the model has `<name>.weight`. The norm is taken from the
    products of each factor with itself, so no matrix is larger than the rank.
    """
    from safetensors import safe_open

    squares: dict[str, float] = {}
    unplaced: list[str] = []
    with safe_open(file, framework="pt") as tensors:  # type: ignore[no-untyped-call]
        names = set(tensors.keys())
        modules = {name.removesuffix(end) for name in names for end in (_DOWN, _UP, _ALPHA) if name.endswith(end)}
        unplaced += sorted(name for name in names if not name.endswith((_DOWN, _UP, _ALPHA)))
        for module in sorted(modules):
            name = module.removeprefix(_PREFIX)
            parts = [module + end for end in (_DOWN, _UP, _ALPHA)]
            if name == module or f"{name}.weight" not in weights or not names.issuperset(parts):
                unplaced.append(module)
                continue
            down, up, alpha = (tensors.get_tensor(part).float() for part in parts)
            scale = float(alpha) / down.shape[0]
            place = block_of(name)
            block = f"{place.stream}.{place.number}" if place is not None else "other"
            square = scale**2 * float(((up.T @ up) * (down @ down.T)).sum())
            squares[block] = squares.get(block, 0.0) + max(0.0, square)
    return LoraLook(tuple(unplaced), {block: round(math.sqrt(square), 6) for block, square in squares.items()})
