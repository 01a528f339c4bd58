"""The predicted timeline of each card in a step, with the mode of the cards and its reason, for drawing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..parallel.timeline import Timeline
from ..placement import EXPERT_PER_GPU
from .cards import Card
from .notes import at_once
from .planning import MemoryPlan
from .step_time import step_timeline

_MOST_SPANS = 512
"""largest number of drawn spans of all cards; more are too thin in a picture as wide as a node"""


@dataclass(frozen=True)
class CardsOfStep:
    """The cards of a job in one step."""

    mode: str
    """one of `placement.MODES`"""
    reason: str
    names: tuple[str, ...]
    timeline: Timeline
    """seconds, without the optimizer"""

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON data; `work`: [is forward, number of the micro-batch, begin, end], times as shares of a step."""
        seconds = self.timeline.seconds
        drawn = sum(map(len, self.timeline.cards)) <= _MOST_SPANS
        lines = [
            [
                [span.work.forward, span.work.micro, round(span.begin / seconds, 4), round(span.end / seconds, 4)]
                for span in line
            ]
            for line in self.timeline.cards
        ]
        return {
            "mode": self.mode,
            "reason": self.reason,
            "seconds": round(seconds, 3),
            "idle": round(self.timeline.idle, 3),
            "sentence": self.sentence(),
            "cards": [
                {"name": name, "work": line if drawn else []} for name, line in zip(self.names, lines, strict=True)
            ],
        }

    def sentence(self) -> str:
        """Returns the mode, and the bubble fraction in words: the share of a step in which cards wait."""
        return f"{self.mode}: the cards wait {100 * self.timeline.idle:.0f} % of a step"


def cards_of_step(plan: MemoryPlan, card: Card | None) -> CardsOfStep | None:
    """Returns the cards of a plan. None for a single card, and if `card`, the first of them, is unknown."""
    job, shape = plan.job, plan.job.shape()
    mode, reason = _mode(plan, card)
    apart = mode == "copy per GPU" or (mode == EXPERT_PER_GPU and bool(job.model.low_noise_file))
    names = job.model.placement.device_names() if apart else (*plan.estimate.devices,)
    if card is None or len(names) < 2:
        return None
    count = job.train.gradient_accumulation_steps
    timeline = step_timeline(shape, job.step, plan.estimate, plan.cards(card), micro_batches=count)
    alike = len(names) // len(timeline.cards)
    return CardsOfStep(mode, reason, names, Timeline(timeline.cards * alike))


def _mode(plan: MemoryPlan, card: Card | None) -> tuple[str, str]:
    shape, requested = plan.job.shape(), plan.job.model.placement
    if shape.others:
        return "split tokens", requested.chosen or plan.exchange
    if len(shape.placement.devices) > 1:
        return "split blocks", requested.chosen or (at_once(plan, card) if card is not None else "")
    copies = "Each card trains a copy of the model on clips of its own; gradients are averaged."
    experts = "Each card trains one expert of the pair at the same time; the cards exchange nothing."
    return requested.mode, requested.chosen or (experts if requested.mode == EXPERT_PER_GPU else copies)
