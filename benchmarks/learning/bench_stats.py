"""Shares of judged clips of the learning bench's lines, with bootstrap errors over concepts."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from learning.bench_file import Line
from shapeworld.drawn_concepts import drawn_concept

RESAMPLES = 4_000
LENGTH = 400
"""optimizer steps of the comparisons at one length"""

Shares = dict[int, float]
"""concept -> share of its clips that show it; over all seeds"""


def bootstrap(values: Sequence[float]) -> tuple[float, float]:
    """Mean of values, one per concept, and its error: the spread of means over concepts drawn with replacement."""
    found = np.asarray(values, dtype=np.float64)
    draws = np.random.default_rng(0).integers(0, len(found), (RESAMPLES, len(found)))
    return float(found.mean()), float(found[draws].mean(axis=1).std())


def shares(lines: Iterable[Line], part: str = "all") -> Shares:
    """Share of clips per concept. Of size and speed, only concepts that have one."""
    right, clips, lines = defaultdict[int, int](int), defaultdict[int, int](int), list(lines)
    if any(part not in line for line in lines):  # of some cells only the total was kept
        return {}
    for line in lines:
        if part in ("size", "speed") and not getattr(drawn_concept(line["concept"]).concept, part):
            continue
        right[line["concept"]] += line[part]
        clips[line["concept"]] += line["clips"]
    return {concept: right[concept] / clips[concept] for concept in sorted(clips)}


def percent(values: Mapping[int, float]) -> str:
    """Mean and error in percent; one concept alone has no error."""
    if not values:
        return ""
    mean, error = bootstrap(list(values.values()))
    return f"{100 * mean:.0f}" + (f" ± {100 * error:.0f}" if len(values) > 1 else "")


def against(mine: Shares, ours: Shares) -> str:
    """Difference on the concepts that both have, as percentage points."""
    both = [100 * (mine[concept] - ours[concept]) for concept in mine if concept in ours]
    if not both:
        return ""
    mean, error = bootstrap(both)
    return f"{mean:+.0f}" + (f" ± {error:.0f}" if len(both) > 1 else "")


def ratio(ours: Shares, mine: Shares) -> str:
    """Mean of ours by theirs, with half the width of the middle 68 % of its bootstrap over concepts."""
    both = [concept for concept in ours if concept in mine]
    one, other = (np.array([some[concept] for concept in both]) for some in (ours, mine))
    if not both or not other.sum():
        return ""
    draws = np.random.default_rng(0).integers(0, len(both), (RESAMPLES, len(both)))
    ratios = one[draws].mean(1) / np.maximum(other[draws].mean(1), 1e-9)
    low, high = np.percentile(ratios, (16, 84))
    return f"{one.mean() / other.mean():.2f} ± {(high - low) / 2:.2f}"


def cost(mine: Sequence[Line], ours: Sequence[Line]) -> float:
    """Training CPU seconds of a cell as a multiple of ours, over the kinds of CPU that ran both; NaN without any."""

    def seconds(lines: Sequence[Line]) -> dict[str, float]:
        by_cpu = defaultdict[str, list[float]](list)
        for line in lines:
            if "train_cpu_s" in line:
                by_cpu[line["cpu"]].append(line["train_cpu_s"])
        return {cpu: float(np.mean(own)) for cpu, own in by_cpu.items()}

    one, other = seconds(mine), seconds(ours)
    ratios = [one[cpu] / other[cpu] for cpu in one if cpu in other]
    return float(np.mean(ratios)) if ratios else math.nan


def cost_text(mine: Sequence[Line], ours: Sequence[Line]) -> str:
    return "" if math.isnan(found := cost(mine, ours)) else f"{found:.1f}"


def best_rates(lines: Sequence[Line]) -> dict[str, list[Line]]:
    """Recipe -> the lines of its best rate, among those tried on most concepts."""
    by_rate = defaultdict[str, dict[float, list[Line]]](dict)
    for line in lines:
        by_rate[line["recipe"]].setdefault(line["rate"], []).append(line)
    best: dict[str, list[Line]] = {}
    for recipe in by_rate:
        most = max(len(shares(own)) for own in by_rate[recipe].values())
        tried = [own for own in by_rate[recipe].values() if len(shares(own)) == most]
        best[recipe] = max(tried, key=lambda own: np.mean(list(shares(own).values())))
    return best
