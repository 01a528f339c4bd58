"""A mean of the saved steps of a run, of any width, made when the run is over (post-hoc EMA, arXiv 2312.02696).

The weight of a moment grows with a power of its time: the mean reaches as far back at the end of a long run as of a
short one, in proportion. Its width is its standard deviation as a share of the run. A save stands for the time since
the one before it, so the mean is as fine as saves are dense.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from ..checkpoint import TensorFile
from ..errors import CheckpointError, ConfigError
from ..events import Evaluated
from ..files import atomic_write_bytes
from ..metrics import records_of
from ..train import SavedStep, SaveStore
from ..words import filled
from .choose import choose_run, prepare_run
from .config import RunStatus, read_run, write_status
from .outcome import METRICS

_WIDEST = math.sqrt(1 / 12)
"""of the plain mean over the whole run"""


@dataclass(frozen=True, kw_only=True)
class PowerMean:
    """The mean that was made."""

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
    saves, shares = _counted(directory, width, last)
    files: list[Path] = []
    for expert in saves[-1].loras:
        file = target.with_name(f"{target.stem}_{expert}{target.suffix}") if expert else target
        atomic_write_bytes(file, _mean_file(_of_expert(expert, saves, shares), width))
        files.append(file)
    return PowerMean(steps=tuple(saved.step for saved in saves), shares=shares, files=tuple(files))


def make_mean_run(directory: Path, width: float, last: int | None) -> tuple[Path, PowerMean]:
    """Makes a run of its own beside `directory`, whose one saved step is the mean: what judges, compares and uses saved
    steps takes it like any.

    The optimizer is that of the newest step, so training can go on from the mean. What was measured before training is
    taken along. Returns its directory. Raises what `export_power_mean` does.
    """
    saves, shares = _counted(directory, width, last)
    newest, config = saves[-1], read_run(directory)
    config = replace(config, run_name=f"{directory.name}_ema{width:g}")
    decision = choose_run(directory.parent, config, resume="new")
    config = prepare_run(decision, config)
    loras = [_mean_file(_of_expert(expert, saves, shares), width) for expert in newest.loras]
    low_noise = loras[1] if len(loras) > 1 else b""
    state = _mean_state(saves, shares)
    made = SaveStore(decision.directory).commit(
        newest.step, config.job_id, loras[0], state, newest.progress, low_noise_lora=low_noise
    )
    _take_along(directory, decision.directory)
    total = config.train.steps
    reason = filled("the mean of {n} saved steps of {run}", n=len(saves), run=directory.name)
    state_name = "done" if made.step >= total else "stopped"
    status = RunStatus(state=state_name, step=made.step, steps=total, reason=reason, job_id=config.job_id)
    write_status(decision.directory, status)
    steps = tuple(saved.step for saved in saves)
    return decision.directory, PowerMean(steps=steps, shares=shares, files=tuple(made.loras.values()))


def _counted(directory: Path, width: float, last: int | None) -> tuple[list[SavedStep], tuple[float, ...]]:
    """Returns the saved steps that count, and how much each does. A suspect one counts only where it is `last`."""
    store = SaveStore(directory)
    steps = [step for step in store.steps() if last is None or step <= last]
    found = [saved for step in steps if (step == last or not store.is_suspect(step)) and (saved := store.read(step))]
    if last is not None and (not found or found[-1].step != last):
        raise CheckpointError(
            f"Run {directory.name} has no intact saved step {last}. Name another, or none for the newest."
        )
    if len(found) < 2:
        raise CheckpointError(
            f"Run {directory.name} has {len(found)} intact saved steps, and a mean needs two. Train on, or lower "
            "save_every_n_steps."
        )
    return found, shares_of([saved.step for saved in found], width)


def _of_expert(expert: str, saves: Sequence[SavedStep], shares: Sequence[float]) -> dict[int, tuple[float, Path]]:
    return {
        saved.step: (share, saved.loras[expert])
        for saved, share in zip(saves, shares, strict=True)
        if expert in saved.loras
    }


def _mean_state(saves: Sequence[SavedStep], shares: Sequence[float]) -> dict[str, Tensor]:
    """Returns the newest resume state with the mean of the weights that count in place of its adapters."""
    state = saves[-1].read_state()
    names = [name for name in state if _TRAINED in f".{name}"]
    sums = {name: torch.zeros_like(state[name], dtype=torch.float64) for name in names}
    whole = dict.fromkeys(names, 0.0)
    for saved, share in zip(saves, shares, strict=True):
        held = saved.read_state()
        for name in names:
            if name in held:  # an expert that had not begun has none
                sums[name] += share * _judged(held, name).double()
                whole[name] += share
    for name in names:
        mean = (sums[name] / whole[name]).to(state[name].dtype)
        state |= dict.fromkeys((kept for kept in _kinds(name) if kept in state), mean)
    return {name: value.clone() for name, value in state.items()}  # no two of a file share memory


_TRAINED = ".lora."
"""begins the names of trained weights, behind that of an expert"""


def _kinds(name: str) -> tuple[str, ...]:
    """The names under which a state may hold the weights that count, best first."""
    head, _, rest = f".{name}".partition(_TRAINED)
    return tuple(f"{head}.{kind}.{rest}".removeprefix(".") for kind in ("ema", "judged", "lora"))


def _judged(state: Mapping[str, Tensor], name: str) -> Tensor:
    return next(state[kept] for kept in _kinds(name) if kept in state)


def _take_along(source: Path, target: Path) -> None:
    """Writes what was measured before training, with which the mean is compared."""
    found = [record for record in records_of(source / METRICS, (Evaluated.name,)) if record.get("step") == 0]
    atomic_write_bytes(target / METRICS, b"".join(json.dumps(record).encode() + b"\n" for record in found))


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
    from safetensors.torch import save

    whole = sum(share for share, _ in files.values())
    sums: dict[str, Tensor] = {}
    dtypes: dict[str, torch.dtype] = {}
    metadata: dict[str, str] = {}
    for share, path in files.values():
        with TensorFile(path) as opened:
            metadata = dict(opened.header.metadata)
            for name in opened.header.tensors:
                value = opened.read(name)
                dtypes[name] = value.dtype
                part = value.double() * (share / whole)
                sums[name] = part if name not in sums else sums[name].add_(part)
    note = {"width": width, "steps": list(files)}
    mean = {name: value.to(dtypes[name]) for name, value in sums.items()}
    return save(mean, metadata | {"wan_trainer.power_mean": json.dumps(note)})
