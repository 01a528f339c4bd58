"""What a run directory says about itself, for outputs and for choosing among saved steps."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from ..wan_core.errors import ConfigError
from ..wan_core.files import read_json
from ..wan_core.metrics import read_metrics
from ..wan_core.train import SavedStep, SaveStore

__all__ = ["RunFacts", "best_step", "chosen_steps", "output_file", "saved_step"]


class RunFacts:
    """metrics.jsonl and the sample index, read once."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._metrics = read_metrics(directory / "metrics.jsonl")

    @property
    def losses(self) -> list[float]:
        """Training loss of every step, in order."""
        return [loss for _, loss in self.step_losses]

    @property
    def step_losses(self) -> list[tuple[int, float]]:
        """(step, training loss) in order."""
        steps = (r for r in self._metrics if r.get("event") == "step")
        return [(r["step"], r["loss"]) for r in steps if r.get("loss") is not None]

    @property
    def eval_losses(self) -> list[tuple[int, float]]:
        """(step, fixed-noise loss) in order; a step measured twice counts once."""
        found = {r["step"]: r["eval_loss"] for r in self._metrics if r.get("event") == "evaluated"}
        return sorted((step, loss) for step, loss in found.items() if loss is not None)

    @property
    def seconds_per_step(self) -> float:
        """Median over the run."""
        seconds = sorted(
            r["seconds"] for r in self._metrics if r.get("event") == "step" and r.get("seconds") is not None
        )
        return seconds[len(seconds) // 2] if seconds else 0.0

    def samples(self) -> list[dict[str, str]]:
        """Preview clips of training in order of their step, as ComfyUI's page wants files."""
        index = self._directory / "samples" / "index.json"
        entries: list[dict[str, Any]] = read_json(index) if index.is_file() else []
        ordered = sorted((e for e in entries if str(e["file"]).count("/") == 1), key=lambda e: (e["step"], e["id"]))
        return [output_file(self._directory / e["file"]) for e in ordered if (self._directory / e["file"]).is_file()]


def output_file(path: Path) -> dict[str, str]:
    """A file below output/wan_trainer/<run> as /view asks for it."""
    run = next(parent for parent in path.parents if parent.parent.name == "wan_trainer")
    subfolder = path.parent.relative_to(run.parent.parent).as_posix()
    return {"filename": path.name, "subfolder": subfolder, "type": "output"}


def best_step(directory: Path) -> int | None:
    """The saved step with the lowest fixed-noise evaluation loss, or None when nothing was evaluated."""
    saved = set(SaveStore(directory).steps())
    known = [(loss, step) for step, loss in RunFacts(directory).eval_losses if step in saved and math.isfinite(loss)]
    return min(known)[1] if known else None


def chosen_steps(directory: Path, wanted: str) -> tuple[int, ...]:
    """The saved steps that `latest`, `best`, `all`, a number or a list of numbers names; ConfigError else."""
    steps = SaveStore(directory).steps()
    if not steps:
        raise ConfigError(f"Run {directory.name} has no saved step yet. Train it first.")
    word = wanted.strip().lower() or "latest"
    if word == "latest":
        return (steps[-1],)
    if word == "best":
        return (best_step(directory) or steps[-1],)
    if word == "all":
        return tuple(steps)
    try:
        numbers = tuple(dict.fromkeys(int(part) for part in word.replace(",", " ").split()))
    except ValueError as error:
        raise ConfigError(
            f'saved step "{wanted[:100]}" is not latest, best, all or numbers such as 250, 500.'
        ) from error
    for number in numbers:
        if number not in steps:
            raise ConfigError(f"Run {directory.name} has no saved step {number}. It has: {', '.join(map(str, steps))}.")
    return numbers


def saved_step(directory: Path, step: int) -> SavedStep:
    """A saved step, verified."""
    saved = SaveStore(directory).read(step)
    if saved is None:
        raise ConfigError(
            f"Saved step {step} of {directory.name} is damaged. Choose another saved step, or train again."
        )
    return saved
