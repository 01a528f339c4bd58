"""benchmarks/results/learning_shifts_CPU_2026-11.md: what the lines of benchmarks/learning/shifts.py say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shapeworld.comfy_graphs import Recipe
from shapeworld.scores import markdown_table

Line = dict[str, Any]
RATE = Recipe().learning_rate


def page(lines: Sequence[Line]) -> str:
    """Returns the whole page."""
    (base,) = [line for line in lines if line["high"] is None]
    taught = [line for line in lines if line["high"] is not None]
    alike = [line for line in taught if _rates(line) == (RATE, RATE)]
    return _TEXT.format(
        lines=len(lines),
        base=_right([base], "old"),
        shifts=_table(alike, _shifts, ("shift, high noise", "shift, low noise"), base),
        rates=_table(
            [line for line in taught if _shifts(line) == (12, 12)],
            _rates,
            ("rate, high noise", "rate, low noise"),
            base,
        ),
    )


def _shifts(line: Line) -> tuple[float, float]:
    return line["high"]["shift"], line["low"]["shift"]


def _rates(line: Line) -> tuple[float, float]:
    return line["high"]["learning_rate"], line["low"]["learning_rate"]


def _right(lines: Sequence[Line], kind: str) -> str:
    right, of = (sum(line[kind]["all"][part] for line in lines) for part in ("right", "of"))
    return f"{right} of {of}"


def _table(lines: Sequence[Line], key: Any, names: tuple[str, str], base: Line) -> str:
    rows = []
    for pair in sorted({key(line) for line in lines}):
        own = sorted((line for line in lines if key(line) == pair), key=lambda line: line["high"]["seed"])
        learnt, kept = ([line[kind]["all"]["right"] for line in own] for kind in ("new", "old"))
        concept = sum(learnt) / sum(line["new"]["all"]["of"] for line in own)
        share = sum(kept) / (len(kept) * base["old"]["all"]["right"])
        seeds = (" ".join(map(str, counts)) for counts in (learnt, kept))
        rows.append((*(f"{value:g}" for value in pair), *seeds, f"{concept:.0%}", f"{share:.1%}"))
    head = (*names, "concept of 24, by seed", "old captions right, by seed", "concept", "old captions kept")
    return markdown_table(head, rows)


_TEXT = """# The training shift of each expert

Written by `python benchmarks/learning/shifts.py --write-docs` from the {lines} lines of
[benchmarks/results/learning_shifts_CPU_2026-11.jsonl](learning_shifts_CPU_2026-11.jsonl); no
figure in the tables is typed by hand. Each expert of the tiny pair is taught "a pink bar hopping" as in the
[learning test](learning_test_pair_CPU_2026-11.md): 350 steps of four clips, 8 of the concept beside 96 of
the old world, rank 8, cosine from 6e-3, by the engine's own trainer in float32. Experts never meet in a step,
so each is trained once for each
shift and seed, and every high noise one is sampled with every low noise one: 20 steps of euler, cfg 2.5, shift 3.
Judges count the clips that show the concept, and the captions of the old world that are right in colour,
shape and direction; the pair as it is gets {base} of these right, and "kept" is the share of that number.

    python benchmarks/learning/shifts.py --seeds 0 1 2
    python benchmarks/learning/shifts.py --high 12 --low 12 --high-rates 6e-3 4e-3 --low-rates 3e-3 --seeds 0 1

## Three shifts for each expert

{shifts}

## Other learning rates at shift 12

{rates}

## What follows

- **The default stays**: 12 for both experts of T2V-A14B taught the concept most often, and 12 is what they are sampled
  with. 24 clips of a seed vary by about 4 either way, so only rows far apart differ for certain.
- **Learning more costs a little of the old**: the pair that learns most keeps least, and the one that keeps most learns
  least. None keeps 98 % of the old captions over its seeds. Between two seeds of one row the captions that are right
  differ by up to eight, five percent of them, so a run alone says little about one percent.
- **Half the rate of the low noise expert** learns the concept as often and keeps about one percent more, less than two
  seeds differ by: `low_noise_learning_rate` stays 0, the rate of the other.
"""
