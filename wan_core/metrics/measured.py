"""Reads the evaluations of a run (of a pair, the mean of both experts), and finds broken previews."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from ..events import Evaluated, SampleReady
from .records import finite, records_of, whole

_Measures = dict[str, float]
_LIMITS = {
    "empty": (0.5, 1.0, "frames of one colour"),
    "flicker": (0.02, 4.0, "flicker"),
    "grid": (0.5, 3.0, "a grid"),
    "spots": (0.02, 3.0, "black spots"),
}
"""measure -> (least difference, least ratio, words) of a broken preview, compared with the one before training

Similarity (`ssim`) has no limit: a run that learns differs as much as one that overfits
(docs/measured/training_run.md).
"""


@dataclass(frozen=True)
class Measured:
    """One evaluation: the mean loss at a step, and the loss of each clip."""

    step: int
    loss: float
    held_out: bool = False
    per_clip: tuple[float, ...] = ()
    own_step: int | None = None
    """number of steps of the evaluated expert; None in a run of one model"""

    settled: bool = True
    """False if an expert was trained after the evaluation, so that the loss belongs to no saved step"""


def read_experts(path: Path) -> dict[str, list[Measured]]:
    """Returns the evaluations of a metrics.jsonl by expert ('' in a run of one model), ordered by step.

    The last evaluation of a step counts; a step whose last loss is not finite is omitted. Never raises for the content
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
    """Returns the evaluations of a metrics.jsonl, ordered by step; for two experts as `together` returns them."""
    return together(list(read_experts(path).values()))


def together(experts: Sequence[Sequence[Measured]]) -> list[Measured]:
    """Returns the evaluations of one model unchanged, or the means of two experts at each step where one was evaluated.

    A mean is `settled` if both losses are of that step.
    """
    if len(experts) < 2:
        return [point for one in experts for point in one]
    steps = sorted({point.step for one in experts for point in one})
    return [replace(point, step=step) for step in steps if (point := _of_both(experts, step)) is not None]


def _of_both(experts: Sequence[Sequence[Measured]], step: int) -> Measured | None:
    """Returns the mean loss of two experts at a step of the run at which one of them was evaluated."""
    here = [next((point for point in one if point.step == step), None) for one in experts]
    evaluated = next(point for point in here if point is not None)
    found = [point or _valid_at(one, step, evaluated) for one, point in zip(experts, here, strict=True)]
    points = [point for point in found if point is not None]
    return replace(mean_of(points), settled=all(point.settled for point in points)) if points else None


def _valid_at(one: Sequence[Measured], step: int, other: Measured) -> Measured | None:
    """Returns the evaluation of one expert that is valid at `step` of the run, where the `other` was evaluated."""
    # The steps of both experts add up to those of the run. An expert does not change while the other trains, so any
    # evaluation with the same number of own steps is valid.
    own = None if other.own_step is None else step - other.own_step
    exact = next((point for point in one if own is not None and point.own_step == own), None)
    newest = next((point for point in reversed(one) if point.step <= step), None)
    return exact or (None if newest is None else replace(newest, settled=False))


def mean_of(points: Sequence[Measured]) -> Measured:
    """Returns the mean of several evaluations, with the step of the last."""
    alike = len({len(point.per_clip) for point in points}) == 1
    per_clip = tuple(map(fmean, zip(*(p.per_clip for p in points), strict=True))) if alike else ()
    return Measured(points[-1].step, fmean(p.loss for p in points), all(p.held_out for p in points), per_clip)


def broken_previews(path: Path) -> dict[int, str]:
    """Returns step -> fault with its figure, for each step of which most previews look broken."""
    clips: dict[tuple[int, str], _Measures] = {}
    for record in records_of(path, (SampleReady.name,)):
        step, measures = whole(record.get("step")), record.get("measures")
        if step is not None and isinstance(measures, dict):
            known = {str(name): number for name, value in measures.items() if (number := finite(value)) is not None}
            clips[step, str(record.get("sample_id", "")).rpartition("_p")[2]] = known
    verdicts: dict[int, list[str]] = {}
    for (step, prompt), measures in clips.items():
        # Compared with the same prompt before training, because the base model may also flicker.
        if step and (base := clips.get((0, prompt))) is not None:
            verdicts.setdefault(step, []).append(_fault(measures, base))
    return {step: max(faults) for step, faults in verdicts.items() if 2 * sum(map(bool, faults)) > len(faults)}


def _fault(measures: _Measures, base: _Measures) -> str:
    """Returns the fault of a clip in comparison with its base; "" for no fault."""
    for name, (more, times, words) in _LIMITS.items():
        if name in measures and name in base:
            found, before = measures[name], base[name]
            if found - before >= more and found >= times * before:
                return f"{words}: {found:.2f}, before training {before:.2f}"
    return ""
