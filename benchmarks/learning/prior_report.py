"""The page of benchmarks/learning/prior.py: what its lines say, beside those without prior preservation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shapeworld.comfy_graphs import Recipe
from shapeworld.scores import markdown_table

Line = dict[str, Any]
NEEDED = 0.98
"""the share of old captions that is to be kept; of the concept, 20 of 24"""


def page(lines: Sequence[Line], shifts: Sequence[Line]) -> str:
    """Returns the whole page; `shifts`: the lines of benchmarks/learning/shifts.py."""
    (base,) = [line for line in shifts if line["high"] is None]
    right = base["old"]["all"]["right"]
    off = [line for line in shifts if line["high"] is not None and _is_usual(line)]
    taught = [*off, *lines]
    rows = []
    for weight in sorted({_weight(line) for line in taught}):
        own = sorted((line for line in taught if _weight(line) == weight), key=lambda line: line["high"]["seed"])
        learnt, kept = ([line[kind]["all"]["right"] for line in own] for kind in ("new", "old"))
        shares = sum(learnt) / sum(line["new"]["all"]["of"] for line in own), sum(kept) / (len(kept) * right)
        reached = "yes" if shares[0] >= 20 / 24 and shares[1] >= NEEDED else "no"
        seeds = (" ".join(map(str, counts)) for counts in (learnt, kept))
        rows.append((f"{weight:g}" if weight else "off", *seeds, f"{shares[0]:.0%}", f"{shares[1]:.1%}", reached))
    head = (
        "weight",
        "concept of 24, by seed",
        f"old captions right (base {right}), by seed",
        "concept",
        "old captions kept",
        "both",
    )
    return _TEXT.format(lines=len(lines), table=markdown_table(head, rows))


def _weight(line: Line) -> float:
    return line["high"].get("prior_preservation", 0.0)


def _is_usual(line: Line) -> bool:
    recipe = Recipe()
    return all(
        (line[expert]["shift"], line[expert]["learning_rate"]) == (12.0, recipe.learning_rate)
        for expert in ("high", "low")
    )


_TEXT = """# What prior preservation keeps

Written by `python benchmarks/learning/prior.py --write-docs` from the {lines} lines of
[benchmarks/results/learning_prior_CPU_2026-11.jsonl](learning_prior_CPU_2026-11.jsonl) and, for
"off", those of [learning_shifts](learning_shifts_CPU_2026-11.md) at shift 12; no figure in the table is
typed by hand. The tiny pair is taught "a pink bar hopping" as there: 350 steps of four clips for each expert,
8 clips of the concept beside 96
of the old world. "off" trains the 96 as what they show. The other rows train them towards what the base model, its
adapters switched off, predicts for the same noise, noise level and caption, with that weight in the loss.

    python benchmarks/learning/prior.py --weights 1 5 7 10 --seeds 0 1 2

{table}

"both": at least 20 of 24 clips of the concept, and 98 % of the old captions, over the seeds of the row.

## Through a real ComfyUI

`python3 benchmarks/learning/concept_test.py --model pair --prior-preservation 5`, core nodes sampling:
the concept in 21 of 24 clips, and 159 of 161 old captions kept (98.8 %). The
[same test without it](learning_test_pair_CPU_2026-11.md): 22 of 24, and 156.

## What follows

- **A weight near 5** learns as much as "off" and keeps more. With weight 1 the error of the old clips, which is small
  and without noise, is drowned by that of the new ones. A weight much above 10 holds the concept back.
- **"off" stays the default**: without clips of other things there is nothing to keep what is known with.
- **The cost** is a forward pass of the base model for each such clip, which `plan`, the plan bar and TFLOP/s count. In
  this recipe they are 40 % of the clips, and a step takes 1.30 times the processor's time (58.0 and 75.6 ms, the high
  noise expert, 90 steps of each, one thread).
- It is the same for every kind of adapter, over frozen LoRAs (they belong to the base), for both experts, with
  accumulation, EMA and TREAD (the base model passes by the same layers with the same tokens, so that "change nothing"
  stays the best answer). A run goes on bitwise. How far the model has strayed on these clips is a curve of
  the panel, `prior` among its numbers, and `prior_loss` in metrics.jsonl and the trackers: it begins at 0.
"""
