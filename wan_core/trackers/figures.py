"""Makes what trackers show of a run: numbers by their names, the same in each of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..events import Evaluated, Event, Marked, StepDone, Suggested

if TYPE_CHECKING:
    from ..job import RunConfig  # which imports torch, and a sender does without

Scalar = str | int | float | bool


@dataclass(frozen=True, kw_only=True)
class About:
    """The run that trackers are told of."""

    folder: str
    """name of its directory: unique among the runs of a machine"""
    name: str
    steps: int
    settings: dict[str, Scalar] = field(default_factory=dict[str, Scalar])
    """of training, LoRA and model, by `train.learning_rate` and the like"""

    @classmethod
    def of(cls, directory: Path, config: RunConfig) -> About:
        """Returns what trackers are told of the run in `directory`: no prompt, no folder of this machine."""
        told = {name: getattr(config, name).to_dict() for name in ("model", "lora", "train")}
        return cls(
            folder=directory.name, name=config.run_name, steps=config.train.steps, settings=dict(_flat("", told))
        )


def figures_of(event: Event) -> dict[str, float]:
    """Returns the finite numbers of an event by name; empty where it has none. Those of a pair end in their expert."""
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
    """Returns the sentence of an event that is one; "" for the others."""
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
