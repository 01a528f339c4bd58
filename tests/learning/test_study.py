"""One trial of benchmarks/learning/recipes.py, far too short to learn anything."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from learning.recipes import RESULTS
from learning.recipes_report import page
from learning.shifts import PAGE as SHIFTS_PAGE
from learning.shifts import RESULTS as SHIFTS
from learning.shifts_report import page as shifts_page
from learning.study import Study, Trial, studied
from shapeworld.comfy_graphs import MODELS, SAMPLING
from shapeworld.concept import load_concept
from shapeworld.learning import CONCEPTS, missing_models

TRIAL_KEYS = ("recipe", "concept", "model", "learning_rate", "seed", "steps", "settings")
USUAL = {"timestep_sampling": "shift", "shift": 3.0, "steps": 2, "clips": 2, "held_out": 1}


@pytest.fixture
def study(tmp_path: Path) -> Study:
    if absent := missing_models(MODELS["pair"]):
        pytest.skip(absent)
    generator = torch.Generator().manual_seed(0)
    texts = {said: torch.randn(rows, 4096, generator=generator) for said, rows in (("", 1), ("a pink bar hopping", 5))}
    return Study(tmp_path, tmp_path, texts, replace(SAMPLING, steps=4))


def test_the_page_of_recipes_is_what_its_trials_say() -> None:
    """`python benchmarks/learning/recipes.py --write-docs` writes it."""
    lines = [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]
    assert len({json.dumps([line[key] for key in TRIAL_KEYS if key in line]) for line in lines}) == len(lines)
    dropped = {"falling_moon", "zigzag_arrow"}  # tried once each, before the three were chosen
    assert all(studied(name).name == name for name in {line["concept"] for line in lines} - dropped)
    assert page(lines) == RESULTS.with_suffix(".md").read_text(encoding="utf-8")


@pytest.mark.soak
def test_a_trial_gives_the_same_line_each_time_but_for_its_seconds(study: Study) -> None:
    trial = Trial(concept="hopping_bar", learning_rate=1e-3, **USUAL)
    first, second = (
        {k: v for k, v in study.run(trial, 1, templates=True).items() if not k.endswith("_s")} for _ in range(2)
    )
    assert first == second
    assert first["clips_judged"] == first["at_shift_8"]["clips_judged"] == 1
    assert first["eval_before"] != first["eval_after"]


@pytest.mark.soak
@pytest.mark.lasts(3)
def test_every_part_of_a_recipe_changes_what_is_learnt(study: Study) -> None:
    concept = load_concept(CONCEPTS / "hopping_bar.json")
    changes = ({}, {"weighting": "x0"}, {"alpha": 1.0}, {"targets": "attention"}, {"shift": 8.0}, {"seed": 1})
    losses = []
    for change in changes:
        trial = Trial(concept="hopping_bar", learning_rate=1e-2, **{**USUAL, **change})
        losses.append(study.train(trial, concept)[1]["eval_after"])
    assert len(set(losses)) == len(changes), losses


@pytest.mark.soak
@pytest.mark.lasts(4)
def test_the_experts_of_a_pair_are_both_trained_and_sample_in_turn(study: Study) -> None:
    concept = load_concept(CONCEPTS / "hopping_bar.json")
    experts, _ = study.train(Trial(concept="hopping_bar", model="pair", learning_rate=1e-3, **USUAL), concept)
    clips = [study.sample(pair, concept, 1)[0] for pair in (experts, experts[:1], experts[1:])]
    assert len(experts) == 2
    assert all((clips[0] != other).any() for other in clips[1:])


def test_the_page_of_shifts_is_what_its_lessons_say() -> None:
    """benchmarks/results/learning_shifts_CPU_2026-11.md: python benchmarks/learning/shifts.py --write-docs."""
    lines = [json.loads(line) for line in SHIFTS.read_text(encoding="utf-8").splitlines()]
    assert len({json.dumps([line[key] for key in ("concept", "high", "low")]) for line in lines}) == len(lines)
    assert shifts_page(lines) == SHIFTS_PAGE.read_text(encoding="utf-8")
