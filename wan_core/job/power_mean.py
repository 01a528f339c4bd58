"""Post-hoc EMA of any width from the saved steps of a run (arXiv 2312.02696).

Weights grow with a power of time, so the average covers the same share of a long run as of a short one. The width is
the standard deviation of the weights as a share of the run. Each save represents the steps since the previous one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from ..checkpoint import TensorFile
from ..errors import CheckpointError, ConfigError
from ..files import atomic_write_bytes
from ..train import SaveStore

_WIDEST = math.sqrt(1 / 12)
"""width of the uniform mean"""


@dataclass(frozen=True, kw_only=True)
class PowerMean:
    """An exported mean LoRA."""

    steps: tuple[int, ...]
    shares: tuple[float, ...]
    """weight of each step; sum 1"""
    files: tuple[Path, ...]


def shares_of(steps: Sequence[int], width: float) -> tuple[float, ...]:
    """Returns the weight of each of the ascending `steps` in the mean at the last one.

    Raises ConfigError for a width that is not above 0 and up to the uniform mean's.
    """
    if not 0 < width <= _WIDEST:
        raise ConfigError(f"width is {width:g}. Use a share of the run above 0 and up to {_WIDEST:.4f}; 0.1 is usual.")
    # The power whose density (power + 1) t^power on 0 to 1 has this standard deviation (the paper's algorithm 2).
    power = float(np.roots([1, 7, 16 - width**-2, 12 - width**-2]).real.max())
    edges = [(step / steps[-1]) ** (power + 1) for step in (0, *steps)]
    return tuple(after - before for before, after in pairwise(edges))


def export_power_mean(directory: Path, width: float, last: int | None, target: Path) -> PowerMean:
    """Writes the mean LoRA of the saved steps up to `last` (None: the newest) to `target`.

    A run of both experts gives two files, with the suffixes _high_noise and _low_noise. Raises CheckpointError for
    fewer than two saved steps, and ConfigError for an impossible width.
    """
    store = SaveStore(directory)
    steps = [step for step in store.steps() if last is None or step <= last]
    # A suspect step counts only as `last`.
    found = [saved for step in steps if (step == last or not store.is_suspect(step)) and (saved := store.read(step))]
    if last is not None and (not found or found[-1].step != last):
        raise CheckpointError(
            f"Run {directory.name} has no intact saved step {last}. Name another, or none for the newest."
        )
    if len(found) < 2:
        raise CheckpointError(
            f"Run {directory.name} has {len(found)} intact saved steps, and a mean needs two. Train longer, or lower "
            "save_every_n_steps."
        )
    shares, files = shares_of([saved.step for saved in found], width), list[Path]()
    for expert in found[-1].loras:
        file = target.with_name(f"{target.stem}_{expert}{target.suffix}") if expert else target
        pairs = [(saved, share) for saved, share in zip(found, shares, strict=True) if expert in saved.loras]
        mean = _mean_file({saved.step: (share, saved.loras[expert]) for saved, share in pairs}, width)
        atomic_write_bytes(file, mean)
        files.append(file)
    return PowerMean(steps=tuple(saved.step for saved in found), shares=shares, files=tuple(files))


def _mean_file(files: Mapping[int, tuple[float, Path]], width: float) -> bytes:
    """Returns the mean LoRA file, in the dtypes and with the metadata of the newest file."""
    total = sum(share for share, _ in files.values())
    sums: dict[str, Tensor] = {}
    dtypes: dict[str, torch.dtype] = {}
    metadata: dict[str, str] = {}
    for share, path in files.values():
        with TensorFile(path) as opened:
            metadata = dict(opened.header.metadata)
            if metadata.get("wan_trainer.tuner_file") == "LoRA":
                raise ConfigError(
                    "The matrices in files of a PEFT tuner are computed separately at each save, so their mean is "
                    "not a LoRA. Set peft_file to differences, or ema_decay, in a new run."
                )
            for name in opened.header.tensors:
                value = opened.read(name)
                dtypes[name] = value.dtype
                part = value.double() * (share / total)
                sums[name] = part if name not in sums else sums[name].add_(part)
    note = {"width": width, "steps": list(files)}
    mean = {name: value.to(dtypes[name]) for name, value in sums.items()}
    return save(mean, metadata | {"wan_trainer.power_mean": json.dumps(note)})
