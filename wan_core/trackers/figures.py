"""The figures of a run for trackers, under the same names in all trackers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..events import Evaluated, Event, Marked, StepDone, Suggested

Scalar = str | int | float | bool


@dataclass(frozen=True, kw_only=True)
class About:
    """Name, length and settings of a run, for trackers."""

    folder: str
    """name of the run directory, unique on a machine"""
    name: str
    steps: int
    settings: dict[str, Scalar] = field(default_factory=dict[str, Scalar])
    """settings of training, LoRA and model, by names such as `train.learning_rate`"""

    @classmethod
    def read(cls, directory: Path) -> About:
        """Returns the run in `directory`, without prompts and without paths of this machine."""
        from ..job import read_run  # imported here, because it imports torch, which `send` does not need

        config = read_run(directory)
        settings = {name: getattr(config, name).to_dict() for name in ("model", "lora", "train")}
        return cls(
            folder=directory.name, name=config.run_name, steps=config.train.steps, settings=dict(_flat("", settings))
        )


def figures_of(event: Event) -> dict[str, float]:
    """Returns the finite numbers of an event by name; in a pair run, names end in the expert."""
    found: dict[str, float | None] = {}
    if isinstance(event, StepDone):
        pair = f"/{event.expert}" if event.expert in ("high", "low") else ""
        found |= {f"train/loss{pair}": event.loss, f"train/learning_rate{pair}": event.lr}
        found[f"train/prior_loss{pair}"] = event.prior_loss
        found |= {f"train/gradient_norm{pair}": event.grad_norm, "train/mean_timestep": event.timestep_mean}
        found |= {"speed/seconds_per_step": event.seconds, "speed/tflops": event.tflops}
        if event.tokens and event.seconds > 0:
            found["speed/tokens_per_second"] = event.tokens / event.seconds
        if event.clips and event.seconds > 0:
            found["speed/clips_per_hour"] = 3600 * event.clips / event.seconds
        for device, memory in event.memory.items():
            now, peak = memory.get("now"), memory.get("peak")
            found[f"memory/{device}/now_gib"] = None if now is None else now / 2**30
            found[f"memory/{device}/peak_gib"] = None if peak is None else peak / 2**30
    elif isinstance(event, Evaluated):
        pair = f"/{event.expert}" if event.expert else ""
        found[f"evaluation/loss{pair}"] = event.eval_loss
        found |= {f"evaluation/at_timestep{pair}/{name}": loss for name, loss in event.per_timestep.items()}
    return {name: float(value) for name, value in found.items() if value is not None and math.isfinite(value)}


def text_of(event: Event) -> str:
    """Returns the sentence of a mark or a suggestion; "" for other events."""
    if isinstance(event, Marked):
        return event.text
    return event.why if isinstance(event, Suggested) else ""


def _flat(prefix: str, values: dict[str, Any]) -> Iterator[tuple[str, Scalar]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(f"{prefix}{name}.", value)
        elif isinstance(value, list):
            yield prefix + name, " ".join(map(str, value))
        elif value is not None:
            yield prefix + name, value
