"""Suggests a saved step by held-out losses, and finds the step from which a run overfits.

No step is suggested if the difference is smaller than the noise between clips and between evaluations.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median, stdev

import numpy as np

from ..words import filled
from .measured import Measured, mean_of, together
from .records import LossCurve

_LEAST = 0.005
"""smallest assumed noise, as a share of the loss before training"""
_UNKNOWN = 0.03
"""noise, as a share of the loss before training, if it cannot be estimated"""
_STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)
"""97.5 % quantiles of Student's t with 1, 2, ... degrees of freedom; the last value also serves larger numbers"""
_LEAST_CLIPS, _LEAST_POINTS = 3, 5
"""smallest numbers of clips and of evaluations for an estimate of the noise"""
_SIGMAS = 2.5
_MAD = 0.6745
_SURE = 3.0
"""standard errors by which the training loss must have fallen"""


@dataclass(frozen=True)
class Suggestion:
    """The suggested saved step or None, and the reason as a sentence."""

    step: int | None
    why: str
    overfits_from: int | None = None
    """step with the lowest held-out loss, if that loss rose afterwards while the training loss fell"""


def suggest(
    measured: Sequence[Measured],
    saved: Collection[int],
    *,
    curve: LossCurve | None = None,
    broken: Mapping[int, str] | None = None,
    nothing_to_learn: str = "",
) -> Suggestion:
    """Returns the saved step with the lowest held-out loss, if it improved by more than noise.

    `measured`: evaluations ordered by step. `broken`: step -> fault of its previews. `nothing_to_learn`: the reason as
    a sentence if the loss on these clips is meaningless, else "".
    """
    broken = broken or {}
    if nothing_to_learn:
        return Suggestion(None, nothing_to_learn)
    if not measured:
        return _none("No step is suggested: no evaluation loss was measured.")
    if not measured[-1].held_out:
        return _none(
            "No step is suggested: the evaluation loss was measured on training clips, and falls also when a run "
            "memorises them. Hold clips out: held_out_ratio of Wan Dataset Settings."
        )
    points = [point for point in measured if point.held_out]
    before, candidates = points[0], [p for p in points if p.step > 0 and p.step in saved]
    if before.step or len(candidates) < 2:
        return _none(
            "No step is suggested: a suggestion needs the held-out loss before training and at two saved steps or more."
        )
    overfits = overfits_from(points, curve) if curve is not None else None
    intact = [point for point in candidates if point.step not in broken]
    if not intact:
        why = broken[min(candidates, key=lambda point: point.loss).step]
        return _none("No step is suggested: the previews of all saved steps look broken ({why}).", overfits, why=why)
    best = min(intact, key=lambda point: point.loss)
    noise, gain = noise_of(points, best, before), before.loss - best.loss
    losses = {"first": f"{before.loss:.4f}", "loss": f"{best.loss:.4f}"}
    if gain <= noise:
        return _none(
            "No step is suggested: the held-out loss went from {first} before training to {loss} at best, and "
            "changes smaller than {noise} between steps are noise.",
            overfits,
            noise=f"{noise:.4f}",
            **losses,
        )
    if gain <= 2 * noise and _stands_alone(points, best):
        return _none(
            "No step is suggested: the held-out loss went from {first} before training to {loss} at best, at that "
            "step alone; changes smaller than {noise} that neighbouring steps do not share are noise.",
            overfits,
            noise=f"{2 * noise:.4f}",
            **losses,
        )
    why = filled(
        "Step {step} is suggested: its held-out loss of {loss} is the lowest of the saved steps, "
        "{share} % below the {first} before training. Changes smaller than {noise} between steps are "
        "noise.",
        step=best.step,
        share=f"{100 * gain / before.loss:.1f}",
        noise=f"{noise:.4f}",
        **losses,
    )
    return Suggestion(best.step, why, overfits)


def _none(why: str, overfits: int | None = None, /, **values: object) -> Suggestion:
    return Suggestion(None, filled(why, **values), overfits)


def suggest_of_pair(
    experts: Mapping[str, Sequence[Measured]],
    saved: Collection[int],
    *,
    curves: Mapping[str, LossCurve],
    broken: Mapping[int, str] | None = None,
    nothing_to_learn: str = "",
) -> Suggestion:
    """Returns the suggestion of a run of both experts, by the mean of their losses at each saved step.

    `curves`: training loss of each expert; overfitting is judged per expert.
    """
    # Only settled points. Otherwise an expert was trained after the evaluation, so the loss belongs to another step.
    settled = [point for point in together(list(experts.values())) if point.settled]
    found = suggest(settled, saved, broken=broken, nothing_to_learn=nothing_to_learn)
    if nothing_to_learn or not settled:
        return found
    marks = [overfits_from([p for p in points if p.held_out], curves[name]) for name, points in experts.items()]
    if len(experts) > 1:
        why = filled("{reason} The loss is the mean of both experts at that step.", reason=found.why)
    else:
        name = next(iter(experts))
        why = filled(
            "{reason} So far only the {expert} noise expert was measured; the other one is measured at its turn.",
            reason=found.why,
            expert=name,
        )
    return replace(found, why=why, overfits_from=min((mark for mark in marks if mark is not None), default=None))


def _stands_alone(points: Sequence[Measured], best: Measured) -> bool:
    place, before = points.index(best), points[0].loss
    neighbours = [points[other] for other in (place - 1, place + 1) if 0 < other < len(points)]
    return any(before - point.loss < (before - best.loss) / 2 for point in neighbours)


def noise_of(points: Sequence[Measured], one: Measured, other: Measured) -> float:
    """Returns the noise of the difference between two evaluations, at least 0.5 % of the loss before training.

    With at least three clips in both: Student's t at 97.5 % times the standard error of the mean difference. Otherwise
    estimated from the second differences of all losses.
    """
    before, losses = abs(points[0].loss), [point.loss for point in points]
    clips = len(one.per_clip)
    if clips >= _LEAST_CLIPS and clips == len(other.per_clip):
        apart = [a - b for a, b in zip(one.per_clip, other.per_clip, strict=True)]
        quantile = _STUDENT[min(clips - 1, len(_STUDENT)) - 1]
        return max(_LEAST * before, quantile * stdev(apart) / math.sqrt(clips))
    if len(losses) < _LEAST_POINTS:
        return _UNKNOWN * before
    # The second differences of a steady fall are 0. Those of independent noise have 6 times the noise's variance.
    bends = [a - 2 * b + c for a, b, c in zip(losses, losses[1:], losses[2:], strict=False)]
    sigma = median(abs(bend) for bend in bends) / _MAD / math.sqrt(6)
    # By chance, the minimum of n losses is sqrt(2 ln n) standard deviations below their mean.
    return max(_LEAST * before, sigma * (math.sqrt(2 * math.log(len(losses))) + _SIGMAS))


def overfits_from(points: Sequence[Measured], curve: LossCurve) -> int | None:
    """Returns the step with the lowest held-out loss, if the mean of the last two evaluations is higher by more than
    noise while the training loss fell; else None.
    """
    if len(points) < _LEAST_CLIPS:
        return None
    best = min(points, key=lambda point: point.loss)
    later = [point for point in points if point.step > best.step]
    if len(later) < 2:
        return None
    last = mean_of(later[-2:])
    if last.loss - best.loss <= noise_of(points, last, best):
        return None
    middle = np.searchsorted(curve.steps, best.step, side="right")
    earlier, since = curve.losses[:middle], curve.losses[middle:]
    if len(earlier) < 2 or len(since) < 2:
        return None
    # In standard errors, because the loss of a step depends mostly on its random sigma.
    error = math.sqrt(float(np.var(earlier, ddof=1)) / len(earlier) + float(np.var(since, ddof=1)) / len(since))
    return best.step if float(earlier.mean() - since.mean()) > _SURE * error else None
