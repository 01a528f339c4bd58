"""Tables of the learning bench beyond the field's: candidates, optimizers, equal seconds, the choice of a step."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from learning.bench_candidates import AND, CANDIDATES, OPTIMIZERS, OURS
from learning.bench_file import Line
from learning.bench_recipes import SCALE
from learning.bench_stats import LENGTH, Shares, against, bootstrap, cost, cost_text, percent, ratio, shares
from shapeworld.scores import markdown_table

CHOSEN_ON = 3
"""first concepts, on which candidates were chosen to be run on more: there the chosen ones are also the lucky ones"""
Curves = Mapping[str, Mapping[int, list[Line]]]
"""recipe -> steps -> lines"""


def _arms(lines: Sequence[Line]) -> dict[tuple[str, float], list[Line]]:
    found = defaultdict[tuple[str, float], list[Line]](list)
    for line in lines:
        if line["steps"] == LENGTH:
            found[line["recipe"], line["rate"]].append(line)
    return found


def _against_ours(lines: Sequence[Line], wanted: Callable[[str], bool]) -> list[tuple[object, ...]]:
    """Rows of arms, most concepts first: recipe, rate, concepts, learnt, minus ours at its own rate, cost in ours."""
    arms = _arms(lines)
    ours = shares(arms.get((OURS.name, OURS.own_rate), []))
    of_ours = [line for line in lines if line["recipe"] == OURS.name and line["steps"] == LENGTH]
    rows = []
    for (recipe, rate), own in arms.items():
        if not wanted(recipe):
            continue
        mine = shares(own)
        apart = [mine[concept] - ours[concept] for concept in mine if concept in ours] or [0.0]
        fresh = against({concept: mine[concept] for concept in sorted(mine)[CHOSEN_ON:]}, ours)
        row = (recipe, f"{rate:g}", len(mine), percent(mine), against(mine, ours), fresh, cost_text(own, of_ours))
        rows.append((-len(mine), -float(np.mean(apart)), row))
    return [row for *_, row in sorted(rows, key=lambda one: one[:2])]


_HEAD = ("change", "rate", "concepts", "learnt, %", "minus ours", "after the first three", "cost")


def candidates(lines: Sequence[Line]) -> str:
    names = {recipe.name for recipe in CANDIDATES}
    return markdown_table(_HEAD, _against_ours(lines, names.__contains__)) if lines else "Not run yet."


def merged(lines: Sequence[Line]) -> str:
    rows = _against_ours(lines, lambda recipe: AND in recipe)
    return markdown_table(_HEAD, rows) if rows else "Not run yet."


def optimizers(lines: Sequence[Line]) -> str:
    """A row per optimizer: what each rate learns, and the best of those on most concepts against ours."""
    arms, rows = _arms(lines), []
    ours = shares(arms.get((OURS.name, OURS.own_rate), []))
    for recipe in OPTIMIZERS:
        own = {rate: shares(arms[recipe.name, rate]) for rate in recipe.rates if (recipe.name, rate) in arms}
        if not own:
            continue
        most = max(map(len, own.values()))
        best = max((rate for rate in own if len(own[rate]) == most), key=lambda rate: np.mean(list(own[rate].values())))
        each = [f"{rate:.3g}: {percent(own.get(rate, {}))} of {len(own.get(rate, {}))}" for rate in recipe.rates]
        full_size = "its own" if recipe.name == "prodigy" else f"{best / SCALE:.2g}"
        rows.append((recipe.name, *each, f"{best:.3g}", full_size, most, percent(own[best]), against(own[best], ours)))
    head = ("optimizer", "half, % of concepts", "offered", "twice", "best rate", "full size", "concepts", "learnt, %")
    head = (*head, "minus ours")
    return markdown_table(head, rows) if rows else "Not run yet."


# ---- seconds -----------------------------------------------------------------------------------


def at_equal_seconds(curves: Curves) -> str:
    """What each recipe learns in the seconds that ours takes for LENGTH steps, and ours as a multiple of it."""
    base = curves.get(OURS.name, {}).get(LENGTH)
    if not base:
        return "Not run yet."
    ours = shares(base)
    rows = [(OURS.name, len(ours), percent(ours), "", "")]
    for recipe, own in curves.items():
        mine = _read_off(own, base) if recipe != OURS.name else {}
        if mine:
            rows.append((recipe, len(mine), percent(mine), against(mine, ours), ratio(ours, mine)))
    return markdown_table(("recipe", "concepts", "learnt, %", "minus ours", "ours as a multiple"), rows)


def _read_off(own: Mapping[int, list[Line]], base: Sequence[Line]) -> Shares:
    """Shares by concept at the cost of `base`, between the lengths that were run; beyond them, at the nearest."""
    costs = [(math.log(cost(own[steps], base)), shares(own[steps])) for steps in sorted(own)]
    at = [one for one, _ in costs]
    concepts = set[int].intersection(*(set(some) for _, some in costs))
    return {one: float(np.interp(0.0, at, [some[one] for _, some in costs])) for one in sorted(concepts)}


# ---- a run while it goes on --------------------------------------------------------------------

_Looks = dict[int, Line]
"""step -> what was seen and measured"""


def _lowest(at: _Looks) -> int:
    return min(at, key=lambda step: at[step]["eval"])


def _earliest(at: _Looks) -> int:
    """The first step whose clips' losses lie within one standard error of those at the lowest."""
    best = np.array(at[_lowest(at)]["eval_clips"])
    for step in sorted(at):
        apart = np.array(at[step]["eval_clips"]) - best
        if apart.mean() <= apart.std(ddof=1) / math.sqrt(len(apart)):
            return step
    return _lowest(at)


_CHOICES: dict[str, Callable[[_Looks], int]] = {
    "lowest held-out loss (what is suggested)": _lowest,
    "the earliest within its noise": _earliest,
    "the last": max,
    "lowest training loss": lambda at: min(at, key=lambda step: at[step]["train_loss"]),
}


def _looks(line: Line) -> _Looks:
    return {int(step): one for step, one in line["at"].items()}


def suggestions(lines: Sequence[Line]) -> str:
    """A row per recipe and way to choose: how often it is the judge's favourite, and what it gives away."""
    rows = []
    for recipe in dict.fromkeys(line["recipe"] for line in lines):
        own = [_looks(line) for line in lines if line["recipe"] == recipe]
        for name, choose in _CHOICES.items():
            right, behind = 0, []
            for at in own:
                most = max(one["all"] for one in at.values())
                right += at[choose(at)]["all"] == most
                behind.append(100 * (most - at[choose(at)]["all"]) / at[choose(at)]["clips"])
            mean, error = bootstrap(behind)
            rows.append((recipe, name, f"{right} of {len(own)}", f"{mean:.0f} ± {error:.0f}"))
    return (
        markdown_table(("recipe", "chosen", "as good as the favourite", "behind it"), rows) if rows else "Not run yet."
    )


def kept(lines: Sequence[Line]) -> str:
    """A row per recipe: learnt and kept at each looked-at step."""
    rows, steps = [], sorted({step for line in lines for step in _looks(line)})
    for recipe in dict.fromkeys(line["recipe"] for line in lines):
        own = [line for line in lines if line["recipe"] == recipe]
        before = {line["concept"]: line["kept_before"] / _looks(line)[steps[-1]]["old"] for line in own}
        cells = []
        for step in steps:
            at = {line["concept"]: _looks(line)[step] for line in own}
            shown = {concept: one["all"] / one["clips"] for concept, one in at.items()}
            left = {concept: one["kept"] / one["old"] for concept, one in at.items()}
            cells.append(f"{percent(left)} (learnt {percent(shown)})")
        rows.append((recipe, percent(before), *cells))
    head = ("recipe", "without a LoRA, %", *(f"{step} steps" for step in steps))
    return markdown_table(head, rows) if rows else "Not run yet."


def failed(lines: Sequence[Line]) -> str:
    if not lines:
        return "None."
    counts = Counter((line["recipe"], line["error"]) for line in lines)
    return markdown_table(("recipe", "cells", "error"), [(recipe, n, why[:160]) for (recipe, why), n in counts.items()])
