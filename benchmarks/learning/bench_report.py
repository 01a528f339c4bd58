"""The page and picture of the learning bench, written from the lines of its results alone."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from html import escape

import numpy as np
from learning.bench_file import AGAIN, FAILED, JUDGE, STEPS, Line, ResultFile
from learning.bench_recipes import RECIPES
from learning.bench_stages import at_equal_seconds, candidates, failed, kept, merged, optimizers, suggestions
from learning.bench_stats import LENGTH, against, best_rates, bootstrap, cost_text, percent, ratio, shares
from shapeworld.scores import markdown_table

PARTS = ("shape", "path", "colour", "size", "speed")
BASES = {"i2v": "image to video (2.2 layout, 4 layers)", "deep": "text to video with the 1.3B's 30 layers, width 128"}
"""part of a result file's name -> the base of its cells"""


def page(results: ResultFile) -> str:
    lines, judged, again = results.lines(), results.lines(JUDGE), results.lines(AGAIN)
    chosen, unseen = ([line for line in lines if bool(line.get("unseen")) == last] for last in (False, True))
    looked = results.lines(STEPS)
    return _TEXT.format(
        file=results.file.name,
        picture=results.file.with_suffix(".svg").name,
        cells=len(lines),
        judge=_judge(judged),
        recipes=_recipes([line for line in chosen if line["recipe"] in RECIPES]),
        unseen=_recipes(unseen) if unseen else "Not run yet.",
        rates=_rates(chosen),
        candidates=candidates(chosen),
        merged=merged(chosen),
        optimizers=optimizers(chosen),
        steps=_steps(chosen),
        seconds=at_equal_seconds(by_steps(chosen)),
        suggestions=suggestions(looked),
        kept=kept(looked),
        failed=failed(results.lines(FAILED)),
        elsewhere=_elsewhere(results),
        again=_again(again),
        hardware=" and ".join(dict.fromkeys(f"{line['cpu']} with torch {line['torch']}" for line in lines)),
        machines=_machines(lines),
    )


def _judge(lines: Sequence[Line]) -> str:
    shown, wrong = defaultdict[str, int](int), defaultdict[str, int](int)
    for line in lines:
        for what, count in line["shown"].items():
            shown[what.rstrip("0123456789")] += count
            wrong[what.rstrip("0123456789")] += line["wrong"][what]
    rows = [(f"near miss: {what}" if what != "concept" else what, shown[what], wrong[what]) for what in shown]
    total = sum(shown.values())
    rows.append(("all", total, f"{sum(wrong.values())} ({100 * sum(wrong.values()) / max(total, 1):.1f} %)"))
    return f"{len(lines)} concepts.\n\n" + markdown_table(("drawn", "clips", "judge wrong"), rows)


def _recipes(lines: Sequence[Line]) -> str:
    lines = [line for line in lines if line["steps"] == LENGTH]
    best = best_rates(lines)
    of_ours = [line for line in lines if line["recipe"] == "ours"]  # a step costs the same at any rate
    ours, rows = shares(best.get("ours", [])), []
    for recipe, own in best.items():
        rate, mine = own[0]["rate"], shares(own)
        tried = {line["rate"] for line in lines if line["recipe"] == recipe}
        at_edge = len(tried) > 1 and rate in (min(tried), max(tried))
        rows.append(
            (
                recipe,
                f"{rate:g}" + (f" of {len(tried)}" if len(tried) > 1 else "") + (" (at the edge)" if at_edge else ""),
                len(mine),
                percent(mine),
                "" if recipe == "ours" else against(mine, ours),
                "" if recipe == "ours" else ratio(ours, mine),
                *(percent(shares(own, part)) for part in PARTS),
                cost_text(own, of_ours),
            )
        )
    head = ("recipe", "best rate", "concepts", "learnt, %", "minus ours", "ours as a multiple", *PARTS, "cost")
    return markdown_table(head, sorted(rows, key=lambda row: -float(row[3].split()[0])))


def _rates(lines: Sequence[Line]) -> str:
    rows = []
    for recipe in RECIPES.values():
        own = [line for line in lines if line["recipe"] == recipe.name and line["steps"] == LENGTH]
        for rate in sorted({line["rate"] for line in own}):
            mine = shares(line for line in own if line["rate"] == rate)
            files = "its files'" if rate == recipe.own_rate else ""
            rows.append((recipe.name, f"{rate:g}", files, len(mine), percent(mine)))
    return markdown_table(("recipe", "rate", "", "concepts", "learnt, %"), rows)


def by_steps(lines: Sequence[Line], least: int = 2) -> dict[str, dict[int, list[Line]]]:
    """Recipe -> steps -> lines of its best rate at this length, where it was run at `least` lengths; ours first."""
    found = defaultdict[str, dict[int, list[Line]]](dict)
    for steps in sorted({line["steps"] for line in lines}):
        for recipe, own in best_rates([line for line in lines if line["steps"] == steps]).items():
            found[recipe][steps] = own
    return {name: own for name, own in sorted(found.items(), key=lambda one: one[0] != "ours") if len(own) >= least}


def _steps(lines: Sequence[Line]) -> str:
    table = by_steps(lines)
    lengths = sorted({steps for own in table.values() for steps in own})

    def cell(own: Sequence[Line]) -> str:
        seconds = np.mean([line["train_cpu_s"] for line in own if "train_cpu_s" in line]) if own else 0.0
        return f"{percent(shares(own))} in {seconds:.0f} s" if own else ""

    rows = [(recipe, *(cell(table[recipe].get(steps, [])) for steps in lengths)) for recipe in table]
    return markdown_table(("recipe", *(f"{steps} steps" for steps in lengths)), rows)


def _elsewhere(results: ResultFile) -> str:
    """Clips learnt of each concept on the other bases, whose cells lie in files of their own."""
    rows = []
    for name, base in BASES.items():
        lines = ResultFile(results.file.with_name(results.file.name.replace("_CPU", f"_{name}_CPU"))).lines()
        for recipe in dict.fromkeys(line["recipe"] for line in lines):
            own = sorted((line for line in lines if line["recipe"] == recipe), key=lambda line: line["concept"])
            learnt = ", ".join(str(line["all"]) for line in own)
            rows.append((base, recipe, learnt, sum(line["clips"] for line in own), sum(line["all"] for line in own)))
    rows.sort(key=lambda row: (row[0], -row[-1]))
    return markdown_table(("base", "recipe", "of 12, by concept", "clips", "learnt"), rows)


def _again(lines: Sequence[Line]) -> str:
    if not lines:
        return "No cell was run again."
    rows = [
        (
            f"{line['recipe']}, {line['rate']:g}, concept {line['concept']}, {line['steps']} steps",
            line["threads"],
            "same CPU" if line["cpu"] == line["cpu_before"] else f"{line['cpu_before']}, then {line['cpu']}",
            ", ".join(line["different"]) or "nothing",
        )
        for line in lines
    ]
    return markdown_table(("cell", "threads", "on", "different"), rows)


def _machines(lines: Sequence[Line]) -> str:
    kinds = defaultdict[tuple[str, str, int], list[float]](list)
    for line in lines:
        if "train_cpu_s" in line:
            kinds[line["cpu"], line["torch"], line["threads"]].append(line["train_cpu_s"] + line["sample_cpu_s"])
    rows = [(*kind, len(own), f"{np.mean(own):.0f} (at most {max(own):.0f})") for kind, own in kinds.items()]
    return markdown_table(("CPU", "torch", "threads", "cells", "CPU s a cell"), rows)


# ---- the picture -------------------------------------------------------------------------------

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 760, 420, 56, 170, 24, 48
_INKS = ("#1f6fb4", "#d1495b", "#2a9d5c", "#8d5fd3", "#c77d0a", "#4f5d75", "#00889a", "#a4508b")


def picture(results: ResultFile) -> str:
    """An SVG of what recipes learn over steps, with the errors of the means."""
    lines = [line for line in results.lines() if not line.get("unseen")]
    shown = {*RECIPES, *by_steps(lines)}
    table = by_steps([line for line in lines if line["recipe"] in shown], least=1)
    lengths = sorted({steps for own in table.values() for steps in own}) or [LENGTH]
    low, high = math.log2(lengths[0]) - 0.3, math.log2(lengths[-1]) + 0.3

    def x(steps: float) -> float:
        return _LEFT + (math.log2(steps) - low) / (high - low) * (_WIDTH - _LEFT - _RIGHT)

    def y(share: float) -> float:
        return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" '
        'font-size="13">',
        "<title>Clips that show the concept, over optimizer steps</title>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
    ]
    for tenths in range(0, 11, 2):
        level = y(tenths / 10)
        parts.append(f'<path d="M{_LEFT} {level:.1f}H{_WIDTH - _RIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{level + 4:.1f}" text-anchor="end">{10 * tenths} %</text>')
    for steps in lengths:
        parts.append(f'<text x="{x(steps):.1f}" y="{_HEIGHT - _BOTTOM + 20}" text-anchor="middle">{steps}</text>')
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{_HEIGHT - 8}" text-anchor="middle">optimizer steps</text>')
    for index, (recipe, own) in enumerate(table.items()):
        parts += _curve(index, recipe, [(x(steps), bootstrap(list(shares(own[steps]).values()))) for steps in own], y)
    return "\n".join([*parts, "</svg>", ""])


def _curve(index: int, recipe: str, points: list[tuple[float, tuple[float, float]]], y: object) -> list[str]:
    """Polyline, error bars and the name in the legend; moved aside a little, so that bars do not hide each other."""
    assert callable(y)
    ink, aside = _INKS[index % len(_INKS)], 3 * (index - 3)
    line = " ".join(f"{at + aside:.1f},{y(mean):.1f}" for at, (mean, _) in points)
    parts = [f'<polyline points="{line}" fill="none" stroke="{ink}" stroke-width="2"/>']
    for at, (mean, error) in points:
        across = at + aside
        top, bottom = y(min(1.0, mean + error)), y(max(0.0, mean - error))
        parts.append(f'<path d="M{across:.1f} {top:.1f}V{bottom:.1f}" stroke="{ink}"/>')
        parts.append(f'<circle cx="{across:.1f}" cy="{y(mean):.1f}" r="3.5" fill="{ink}"/>')
    down = _TOP + 14 + 20 * index
    parts.append(f'<circle cx="{_WIDTH - _RIGHT + 18}" cy="{down - 4}" r="4" fill="{ink}"/>')
    parts.append(f'<text x="{_WIDTH - _RIGHT + 30}" y="{down}">{escape(recipe)}</text>')
    return parts


_TEXT = """# Which recipe teaches a LoRA best, on concepts that nobody chose

Written by `python benchmarks/learning/bench.py --write-docs` from the {cells} cells of
[{file}]({file}); no figure is typed by hand. A cell trains the
tiny Wan on a drawn concept (8 to 40 clips and stills of one or two flat shapes on a path,
`tests/shapeworld/drawn_concepts.py`), samples twelve clips (20 steps of euler, cfg 2.5, shift 3), and counts those in
which a judge, plain code, sees the concept's outline, path and colour, and its size and speed where it has them.
"Learnt" is that share, as a mean over concepts with its bootstrap error (concepts drawn with replacement). Recipes are
values in `benchmarks/learning/bench_recipes.py`, which names the file that each is from; rates are those of the tiny
model, 40 times those of full-size models. A recipe stands at the best of the rates that were tried on it. The cells ran
on {hardware}, one thread each.

![recipes over steps]({picture})

## Recipes, at 400 steps

{recipes}

A part is the share of clips that show it, whatever else they show; of size and speed, over concepts that have one.
"minus ours": percentage points, on the concepts that both were run on. Cost: CPU seconds of the training, in ours.

## The same on the twenty unseen concepts

{unseen}

## On two other bases

The first three concepts, each recipe at its best rate of above. An image-to-video model starts each judged clip from
the first frame of a scene that was not trained on. The base of 30 layers was trained on a GPU for this check
(`benchmarks/learning/gpu_bases.py`) and is not in the repository.

{elsewhere}

## Rates

A rate is dropped after three concepts unless it is one of the best two of its recipe, after six unless it is the best.

{rates}

## Candidates

Ours with one change, at our rate or at one that the change is known to move. "minus ours": percentage points on the
concepts that both were run on, ours at its default rate. A candidate is dropped after three and six concepts unless it
is among the best. The best of many are the luckiest too: "after the first three" is the difference on concepts that
nothing was chosen on, and says how much a change gains.

{candidates}

## What gained most, together

{merged}

## Optimizers

Each with our recipe at the rate that it is offered with (times 40), a half and twice of it.

{optimizers}

## Over steps and seconds

{steps}

At equal CPU seconds of training, those of ours at 400 steps, read off each recipe's line over the logarithm of its
cost; only recipes that were run at two lengths:

{seconds}

## Which step of a run

One run each, looked at after a quarter, a half, three quarters and all of its steps. "As good as the favourite": no
step that was looked at shows the concept in more clips. "Behind it": how many points of learnt clips the choice gives
away, on average.

{suggestions}

## What a LoRA does to other captions

Twelve captions of the world that the model knew before: how many clips still show what they say.

{kept}

## Cells that failed

{failed}

## The judge

On drawn clips, and on clips that differ from the concept in one part: another outline of its family, its path mirrored
or reversed, a neighbouring colour, the other size or speed. {judge}

## The same cell again

{again}

## Machines

{machines}
"""
