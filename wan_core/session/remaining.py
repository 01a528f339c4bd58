"""Foresees what a run has to do beside its steps: saves, evaluations and previews, each as long as those before."""

from __future__ import annotations

import math
from dataclasses import replace

from ..events import Event, StageEnded, StepDone
from ..train import TrainConfig

_LAST = 3
"""of a kind whose mean is what the next one takes"""


class Remaining:
    """Hears how long they take, and tells each step what is still to come."""

    def __init__(self, train: TrainConfig) -> None:
        self._train = train
        self._seconds: dict[str, list[float]] = {"save": [], "evaluate": [], "sample": []}

    def told(self, event: Event) -> Event:
        """Returns an event as it is told: a step with the seconds that what is beside the steps will take."""
        if isinstance(event, StageEnded) and event.stage in self._seconds:
            self._seconds[event.stage] = [*self._seconds[event.stage][1 - _LAST :], event.seconds]
        if not isinstance(event, StepDone):
            return event
        counts = self.to_come(event.step)
        left = sum(counts[kind] * sum(took) / len(took) for kind, took in self._seconds.items() if took)
        return replace(event, beside_left=left)

    def to_come(self, step: int) -> dict[str, int]:
        """Returns how many of each are due after `step` is done, what follows that very step among them."""
        train = self._train
        saves, previews = train.save_every_n_steps, train.preview_every_n_steps
        measures = train.eval_every_n_steps or saves
        return {
            "save": _due(step, train.steps, saves),
            "evaluate": _due(step, train.steps, saves, measures),
            "sample": _due(step, train.steps, previews) if previews else 0,
        }


def _due(step: int, steps: int, *every: int) -> int:
    """Returns at how many of the steps from `step` to `steps` something is due that comes at multiples of one or two
    numbers, and at the last step.
    """
    first, last = every[0], every[-1]
    count = _multiples(step, steps - 1, first)
    if last != first:
        count += _multiples(step, steps - 1, last) - _multiples(step, steps - 1, math.lcm(first, last))
    return count + 1


def _multiples(low: int, high: int, of: int) -> int:
    return max(0, high // of - (low - 1) // of)
