"""A mean of the saved steps of a run, of any width, made when the run is over (post-hoc EMA, arXiv 2312.02696).

The weight of a moment grows with a power of its time: the mean reaches as far back at the end of a long run as of a
short one, in proportion. Its width is its standard deviation as a share of the run. A save stands for the time since
the one before it, so the mean is as fine as saves are dense.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from ..errors import CheckpointError, ConfigError
from ..files import atomic_write_bytes
from ..train import SaveStore

__all__ = ["export_power_mean"]

_WIDEST = math.sqrt(1 / 12)
"""of the plain mean over the whole run"""


@dataclass(frozen=True, kw_only=True)
class PowerMean:
    """What was made."""

    steps: tuple[int, ...]
    shares: tuple[float, ...]
    """how much each step counts; together 1"""
    files: tuple[Path, ...]


def shares_of(steps: Sequence[int], width: float) -> tuple[float, ...]:
    """Returns how much each of the rising `steps` counts in the mean at the last of them.

    Raises ConfigError for a width that no power has: above 0, up to that of the plain mean.
    """
    if not 0 < width <= _WIDEST:
        raise ConfigError(f"width is {width:g}. Use a share of the run above 0 and up to {_WIDEST:.4f}; 0.1 is usual.")
    power = _power_of(width)
    edges = [(step / steps[-1]) ** (power + 1) for step in (0, *steps)]
    return tuple(after - before for before, after in pairwise(edges))


def export_power_mean(directory: Path, width: float, last: int | None, target: Path) -> PowerMean:
    """Writes the mean of the LoRAs of the saved steps up to `last` (None: the newest) to `target`.

    Where both experts of a pair are trained there are two files, with _high_noise and _low_noise behind the name.
    Raises CheckpointError where fewer than two steps are saved, and ConfigError for an impossible width.
    """
    store = SaveStore(directory)
    found = [saved for step in store.steps() if (last is None or step <= last) and (saved := store.read(step))]
    if last is not None and (not found or found[-1].step != last):
        raise CheckpointError(f"Run {directory.name} has no intact saved step {last}.")
    if len(found) < 2:
        raise CheckpointError(
            f"Run {directory.name} has {len(found)} intact saved steps, and a mean needs two. Train on, or lower "
            "save_every_n_steps."
        )
    steps = tuple(saved.step for saved in found)
    shares, files = shares_of(steps, width), []
    for expert in found[-1].loras:
        of_expert = {
            saved.step: (share, saved.loras[expert])
            for saved, share in zip(found, shares, strict=True)
            if expert in saved.loras
        }
        file = target.with_name(f"{target.stem}_{expert}_noise{target.suffix}") if expert else target
        atomic_write_bytes(file, _mean_file(of_expert, width))
        files.append(file)
    return PowerMean(steps=steps, shares=shares, files=tuple(files))


def _power_of(width: float) -> float:
    """Returns the power whose density (power + 1) t^power on 0 to 1 has that standard deviation."""
    few, many = 0.0, 1.0

    def deviation(power: float) -> float:
        return math.sqrt((power + 1) / ((power + 2) ** 2 * (power + 3)))

    while deviation(many) > width:
        many *= 2
    for _ in range(80):
        middle = (few + many) / 2
        few, many = (middle, many) if deviation(middle) > width else (few, middle)
    return (few + many) / 2


def _mean_file(files: Mapping[int, tuple[float, Path]], width: float) -> bytes:
    """Returns a LoRA file whose tensors are the mean of those of the files, in their dtype; the newest one's texts."""
    from safetensors import safe_open
    from safetensors.torch import save

    whole = sum(share for share, _ in files.values())
    sums: dict[str, Tensor] = {}
    dtypes: dict[str, torch.dtype] = {}
    metadata: dict[str, str] = {}
    for share, path in files.values():
        with safe_open(path, framework="pt") as opened:
            metadata = dict(opened.metadata() or {})
            for name in opened.keys():  # noqa: SIM118  (it is no mapping)
                value = opened.get_tensor(name)
                dtypes[name] = value.dtype
                part = value.double() * (share / whole)
                sums[name] = part if name not in sums else sums[name].add_(part)
    note = {"width": width, "steps": list(files)}
    mean = {name: value.to(dtypes[name]) for name, value in sums.items()}
    return save(mean, metadata | {"wan_trainer.power_mean": json.dumps(note)})
