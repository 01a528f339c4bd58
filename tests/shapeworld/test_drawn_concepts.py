"""Drawn concepts: the same from a seed each time, in the format of concept files, and apart for the judge."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from shapeworld.concept import concept_scene, load_concept
from shapeworld.drawn_concepts import CLIPS, drawn_concept, judgements
from shapeworld.files import drawn
from shapeworld.judge import judge, matches_concept
from shapeworld.scenes import RADII

SEEDS = (1000, 1002, 1004)


def test_a_seed_draws_the_same_concept_each_time() -> None:
    first, second = ([drawn_concept(seed) for seed in SEEDS] for _ in range(2))
    assert first == second
    assert len({one.concept.outline for one in first}) == len({one.concept.path for one in first}) == len(SEEDS)
    assert all(CLIPS[0] <= one.clips + one.stills <= CLIPS[1] for one in first)
    assert first[0].concept.caption == "a lime kunox turning"
    assert (first[0].clips, first[0].stills) == (20, 6)


def test_a_drawn_concept_is_a_concept_file(tmp_path: Path) -> None:
    concept = drawn_concept(1002).concept
    assert concept.size == "small"
    file = tmp_path / "drawn.json"
    file.write_text(json.dumps(asdict(concept)), encoding="utf-8")
    assert load_concept(file) == concept
    assert RADII["small"][0] <= concept_scene(concept, 0).radius <= RADII["small"][1]
    file.write_text(json.dumps(asdict(concept) | {"speed": "swift"}), encoding="utf-8")
    with pytest.raises(ValueError, match=r"speed is 'swift'\. Use slow or fast, or leave it out"):
        load_concept(file)


@pytest.mark.parametrize("seed", [1002, *(pytest.param(seed, marks=pytest.mark.soak) for seed in (1000, 1004))])
def test_the_judge_knows_a_concept_from_its_near_misses(seed: int) -> None:
    one = drawn_concept(seed)
    found = list(judgements(one, first=9_000, count=2))
    assert {what.rstrip("0123456789") for what, _ in found} >= {"concept", "shape", "path", "colour"}
    assert [what for what, right in found if not right] == []


def test_a_near_miss_is_wrong_in_its_own_part_alone() -> None:
    one = drawn_concept(1002)
    wrong = {}
    for near in one.near:
        match = asdict(matches_concept(judge(drawn(concept_scene(near, 9_000)), one.candidates), one.concept))
        wrong[near.name.removeprefix("drawn_1002_").rstrip("0123456789")] = [part for part in match if not match[part]]
    assert wrong == {part: [part] for part in ("shape", "path", "colour", "size", "speed")}
