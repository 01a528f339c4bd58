"""The plan of the learning bench goes through all its stages from results alone, whatever order they come in."""

from __future__ import annotations

import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from learning.bench_candidates import AND, recipe_of
from learning.bench_file import CELL, FAILED, STEPS, Line, key_of
from learning.bench_plan import LENGTH, Arm, Plan

CONCEPTS = list(range(1000, 1020))
SHARES = {"ours": 0.5, "shift 5": 0.7, "LoRA+ 4": 0.65, "lion": 0.6, "DiffSynth": 0.45, "DoRA": 0.3}
"""what recipes learn in the made-up results; others 0.4"""


def _finished(cell: Line) -> Line:
    parts = [SHARES.get(part, 0.4) for part in cell["recipe"].split(AND)]
    share = max(parts) + 0.02 * (len(parts) - 1)
    right = 120 * share + random.Random(repr(key_of(cell))).choice((-1, 0, 1)) + 2 * (cell["rate"] in (0.004, 0.008))
    return cell | {"all": round(right), "clips": 120}


def test_the_plan_goes_through_all_stages_and_merges_what_gained_most() -> None:
    lines: list[Line] = []
    stages: list[list[str]] = []
    while (plan := Plan(lines, CONCEPTS)) and (cells := plan.cells()):
        stages.append([stage for stage, wanted in plan.wanted.items() if wanted])
        random.Random(len(lines)).shuffle(cells)
        some = cells[: max(1, 2 * len(cells) // 3)]  # a machine that ends in the middle of a stage
        lines += [
            cell | {"kind": FAILED} if cell["recipe"] == "DoRA" and cell["concept"] == 1001 else _finished(cell)
            for cell in some
        ]
    assert len({key_of(line) for line in lines}) == len(lines) < 1_300
    last = Plan(lines, CONCEPTS).on_unseen([2000])
    assert {"ours", "musubi", "DiffSynth"} < {cell["recipe"] for cell in last}
    assert all(cell["unseen"] and cell["concept"] == 2000 for cell in last)
    assert set(stages[0]) == {"rates 0", "rates 1", "optimizers 0", "screening 0"}
    assert stages[-1] == ["lengths"]
    at_length = {line["recipe"] for line in lines if line["kind"] == CELL and line["steps"] != LENGTH}
    merged = {name for name in at_length if AND in name}
    assert {"ours", "DiffSynth"} <= at_length
    assert any(name.startswith("shift 5 + LoRA+ 4") for name in merged)
    assert all(recipe_of(name).train["loraplus_lr_ratio"] == 4.0 for name in merged)
    assert {line["recipe"] for line in lines if line["kind"] == STEPS} == {"ours", "DiffSynth"}
    on_all = [line["recipe"] for line in lines if line["kind"] == CELL and line["steps"] == LENGTH]
    assert on_all.count("DoRA") <= 4
    assert all(on_all.count(name) >= 20 for name in ("ours", "diffusion-pipe", "shift 5", "lion"))


def test_a_race_looks_only_at_the_concepts_of_the_round_before() -> None:
    arms = [Arm("shift 2", 0.004), Arm("shift 5", 0.004)]
    late = [_finished(_cell(arm, concept)) for arm in arms for concept in CONCEPTS]
    for line in late:
        if line["concept"] > CONCEPTS[2] and line["recipe"] == "shift 2":
            line["all"] = 120
    plan = Plan(late, CONCEPTS)
    assert plan.best(arms, 1, 3) == [arms[1]]
    assert plan.best(arms, 1, 20) == [arms[0]]


def _cell(arm: Arm, concept: int) -> Line:
    return {"kind": CELL, "recipe": arm.recipe, "rate": arm.rate, "concept": concept, "seed": 0, "steps": LENGTH}
