"""The evaluations of a run, read back; the two experts of a pair joined into one loss of each saved step.

An expert does not change while the other one trains, so its loss at a step of the run is that of its evaluation with as
many steps of its own, before or after.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from ..events import Evaluated
from .records import finite, records_of, whole


@dataclass(frozen=True)
class Measured:
    """One evaluation: the loss at a step, and that of each of its clips."""

    step: int
    loss: float
    held_out: bool = False
    per_clip: tuple[float, ...] = ()
    own_step: int | None = None
    """the steps of the measured expert; None in a run of one model"""
    settled: bool = True
    """False where an expert has changed since its evaluation: the loss is then of no saved step"""


def read_experts(path: Path) -> dict[str, list[Measured]]:
    """Returns the evaluations of a metrics.jsonl by expert ('' for the one model of a run), in order of their step.

    Of a step measured twice the last one counts; a loss that is not finite counts as none. Never raises for the content
    of a line.
    """
    experts: dict[str, dict[int, Measured]] = {}
    for record in records_of(path, (Evaluated.name,)):
        step, loss = whole(record.get("step")), finite(record.get("eval_loss"))
        if step is None:
            continue
        of_expert = experts.setdefault(str(record.get("expert", "")), {})
        if loss is None:
            of_expert.pop(step, None)
            continue
        clips = record.get("per_clip")
        values = [finite(value) for value in clips] if isinstance(clips, list) else []
        per_clip = tuple(value for value in values if value is not None)
        of_expert[step] = Measured(
            step,
            loss,
            record.get("held_out") is True,
            per_clip if len(per_clip) == len(values) else (),
            whole(record.get("expert_step")),
        )
    return {name: sorted(found.values(), key=lambda m: m.step) for name, found in experts.items() if found}


def read_measured(path: Path) -> list[Measured]:
    """Returns the evaluations of a metrics.jsonl in order of their step, those of two experts `together`."""
    return together(list(read_experts(path).values()))


def together(experts: Sequence[Sequence[Measured]]) -> list[Measured]:
    """Returns the evaluations of one model as they are; of two experts, their mean at each step at which one was
    measured, `settled` where both figures are those of that step.
    """
    if len(experts) < 2:
        return [point for one in experts for point in one]
    steps = sorted({point.step for one in experts for point in one})
    return [replace(point, step=step) for step in steps if (point := _of_both(experts, step)) is not None]


def _of_both(experts: Sequence[Sequence[Measured]], step: int) -> Measured | None:
    """Returns the mean loss of two experts at a step of the run at which one of them was measured."""
    here = [next((point for point in one if point.step == step), None) for one in experts]
    other = next(point for point in here if point is not None)
    found = [point or _as_it_was(one, step, other) for one, point in zip(experts, here, strict=True)]
    points = [point for point in found if point is not None]
    return replace(mean_of(points), settled=all(point.settled for point in points)) if points else None


def _as_it_was(one: Sequence[Measured], step: int, other: Measured) -> Measured | None:
    """Returns the evaluation of an expert that holds while the other one is measured at `step` of the run.

    The steps of both add up to those of the run, so that its own are known: an evaluation at exactly these is settled.
    """
    own = None if other.own_step is None else step - other.own_step
    exact = next((point for point in one if own is not None and point.own_step == own), None)
    newest = next((point for point in reversed(one) if point.step <= step), None)
    return exact or (None if newest is None else replace(newest, settled=False))


def mean_of(points: Sequence[Measured]) -> Measured:
    """Returns several evaluations as one at the step of the last."""
    alike = len({len(point.per_clip) for point in points}) == 1
    per_clip = tuple(map(fmean, zip(*(p.per_clip for p in points), strict=True))) if alike else ()
    return Measured(points[-1].step, fmean(p.loss for p in points), all(p.held_out for p in points), per_clip)
