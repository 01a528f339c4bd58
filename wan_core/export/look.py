"""Checks a saved LoRA file: whether ComfyUI loads every name, and the size of each block's change."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..checkpoint import TensorFile
from ..lora.changes import BIAS, change_of, scale_of
from ..lora.names import parse_key
from ..model import block_of

_PREFIX = "diffusion_model."


@dataclass(frozen=True)
class LoraLook:
    unplaced: tuple[str, ...]
    """names that ComfyUI skips: the model has no such weight, or parts are missing"""
    weights: tuple[str, ...]
    """original names of the changed weights that ComfyUI loads"""
    updates: dict[str, float]
    """block -> Frobenius norm of its change at strength 1, norms and biases included; "other": outside the blocks.
    DoRA: of its pair; OFT: of its skew-symmetric matrices, since their changes depend on the weights"""


def look_at_lora(file: Path, weights: Collection[str]) -> LoraLook:
    """Returns what the LoRA in `file` changes in a model with these `weights` (original Wan names)."""
    squares: dict[str, float] = {}
    placed: list[str] = []
    with TensorFile(file) as tensors:
        modules: dict[tuple[str, str], dict[str, str]] = {}
        unplaced: list[str] = []
        for key in sorted(tensors.header.tensors):
            if (found := parse_key(key)) is None:
                unplaced.append(key)
            else:
                modules.setdefault((found.wrapping, found.module), {})[found.part] = key
        for (wrapping, name), parts in sorted(modules.items()):
            # ComfyUI's key of a linear is `diffusion_model.<name>`, for each `<name>.weight` of the model.
            if wrapping != _PREFIX or f"{name}.weight" not in weights or not _complete(parts):
                unplaced.append(f"{wrapping}{name}")
                continue
            placed.append(f"{name}.weight")
            norm = _norm({part: tensors.read_as(key, torch.float32) for part, key in parts.items()})
            place = block_of(name)
            block = f"{place.stream}.{place.number}" if place is not None else "other"
            squares[block] = squares.get(block, 0.0) + norm**2
    updates = {block: round(math.sqrt(square), 6) for block, square in squares.items()}
    return LoraLook(tuple(unplaced), tuple(placed), updates)


def _complete(parts: Collection[str]) -> bool:
    """Returns whether a module's parts are a change as saved here, or a bias change alone."""
    change = change_of(set(parts) - {BIAS})
    return set(parts) == {BIAS} if change is None else change.scaled == ("alpha" in parts)


def _norm(parts: Mapping[str, Tensor]) -> float:
    bias = float(parts[BIAS].norm()) if BIAS in parts else 0.0
    change = change_of(parts.keys() - {BIAS})
    if change is None:
        return bias
    rank = change.rank({part: tuple(value.shape) for part, value in parts.items()})
    alpha = float(parts["alpha"]) if "alpha" in parts else None
    return math.hypot(bias, float(change.of(parts, scale_of(alpha, rank)).norm()))
