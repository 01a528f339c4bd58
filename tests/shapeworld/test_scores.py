"""Counting what judges say, limits for samples of any size, and the sheets people look at."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from shapeworld.comfy_graphs import MODELS, Recipe
from shapeworld.concept import concept_scene, load_concept
from shapeworld.files import drawn
from shapeworld.judge import ConceptMatch, WordMatch
from shapeworld.learning import CONCEPTS, FULL, Findings, concept_score, concept_strips, draw_dataset, word_score
from shapeworld.learning_report import command, document
from shapeworld.scenes import all_words, captioned_scene
from shapeworld.scores import Check, ConceptScore, Count, WordScore, least_right, markdown_table, most_right
from shapeworld.sheet import EDGE, Strip, contact_sheet, save_sheet


def test_a_score_counts_each_part_and_all_together() -> None:
    score = WordScore.over([WordMatch(True, True, True), WordMatch(True, False, True), WordMatch(False, False, True)])
    assert (score.colour, score.shape, score.direction, score.all) == (
        Count(2, 3),
        Count(1, 3),
        Count(3, 3),
        Count(1, 3),
    )
    assert str(score.colour) == "2 of 3 (67%)"
    star = ConceptScore.over([ConceptMatch(shape=True, path=True, colour=False)])
    assert (star.shape.right, star.path.right, star.colour.right, star.all.right) == (1, 1, 0, 0)


def test_what_is_kept_is_a_part_of_what_was_there() -> None:
    right, wrong = WordMatch(True, True, True), WordMatch(False, True, True)
    was, now = WordScore.over([right, right, right, right]), WordScore.over([right, right, right, wrong])
    assert now.kept(was) == {"colour": 0.75, "shape": 1.0, "direction": 1.0, "all": 0.75}
    nothing = WordScore.over([WordMatch(False, False, False)])
    assert nothing.kept(nothing)["colour"] == 1.0


@pytest.mark.parametrize(
    ("share", "of", "least"), [(0.95, 12, 10), (0.85, 12, 7), (0.8, 8, 4), (1.0, 5, 5), (0.0, 5, 0)]
)
def test_small_samples_get_the_slack_that_chance_needs(share: float, of: int, least: int) -> None:
    assert least_right(share, of) == least


def test_limits_are_exact_in_the_full_form() -> None:
    assert most_right(0.1, 8) == 3
    assert Check.least("x", Count(19, 20), 0.95, exact=True).holds
    assert not Check.least("x", Count(18, 20), 0.95, exact=True).holds
    assert Check.most("x", Count(2, 24), 0.1, exact=True).holds
    assert not Check.most("x", Count(3, 24), 0.1, exact=True).holds
    assert Check.most("x", Count(3, 24), 0.1, exact=True).wanted == "<= 2 of 24"


def test_a_table_has_a_line_per_row() -> None:
    assert markdown_table(("a", "b"), [(1, Count(1, 2))]).splitlines() == [
        "| a | b |",
        "| --- | --- |",
        "| 1 | 1 of 2 (50%) |",
    ]


def test_a_sheet_shows_every_frame_of_every_strip_in_its_place(tmp_path: Path) -> None:
    red, blue = np.zeros((2, 9, 64, 64, 3), np.uint8)
    red[..., 0] = blue[..., 2] = 255
    groups = [[Strip("base", red), Strip("LoRA", blue)]] * 3
    save_sheet(contact_sheet("title", groups), tmp_path / "new" / "sheet.png")
    with Image.open(tmp_path / "new" / "sheet.png") as sheet:
        pixels = np.asarray(sheet.convert("RGB"))
    for colour in ((255, 0, 0), (0, 0, 255)):
        assert (pixels == colour).all(-1).sum() == 3 * 9 * EDGE * EDGE
    reds, blues = ((pixels == colour).all(-1).any(1).nonzero()[0] for colour in ((255, 0, 0), (0, 0, 255)))
    assert reds.min() < blues.min(), "the baseline stands above"
    assert contact_sheet("nothing", []).size[1] > 0


def test_drawn_clips_score_as_what_they_show() -> None:
    star = load_concept(CONCEPTS / "bouncing_star.json")
    words = all_words()[:3]
    clips = [[drawn(captioned_scene(one, 5)), drawn(captioned_scene(one, 6))] for one in words]
    stars = [[drawn(concept_scene(star, seed)) for seed in range(2)]]
    assert word_score(words, clips, [star]).all == Count(6, 6)
    assert word_score(words[::-1], clips).all == Count(2, 6)  # only the one in the middle stays with its caption
    assert concept_score(star, stars).all == Count(2, 2)
    assert concept_score(star, clips).all == Count(0, 6)
    groups = concept_strips(clips[:1], stars)
    assert [[strip.label for strip in group] for group in groups] == [["1: base", "1: LoRA"], ["2: base", "2: LoRA"]]
    assert groups[1][1].frames is stars[0][1]


def test_datasets_hold_the_captions_of_the_recipe(tmp_path: Path) -> None:
    star = load_concept(CONCEPTS / "bouncing_star.json")
    recipe = Recipe(clips=3, prior_clips=2, concept_captions=("{caption}", "{caption} slow"))
    folder, prior = draw_dataset(tmp_path, star, recipe)
    captions = [
        file.read_text(encoding="utf-8").strip() for file in sorted((tmp_path / "input" / folder).glob("*.txt"))
    ]
    assert captions == [star.caption, f"{star.caption} slow", star.caption]
    assert len(list((tmp_path / "input" / prior).glob("*.mp4"))) == 2
    assert draw_dataset(tmp_path / "alone", star, Recipe(clips=1, prior_clips=0))[1] == ""


def test_the_document_names_the_command_that_measures_it_again() -> None:
    star = load_concept(CONCEPTS / "circling_cross.json")
    words = WordScore.over([WordMatch(True, True, True)] * 20)
    forgot = WordScore.over([WordMatch(True, True, True)] * 17 + [WordMatch(False, True, True)] * 3)
    concept = [ConceptScore.over([ConceptMatch(shape=True, path=True, colour=seen)] * 10) for seen in (False, True)]
    found = Findings(
        model=MODELS["t2v"],
        concept=star,
        recipe=Recipe(steps=50, concept_captions=("{caption}", "it is {caption}")),
        plan=FULL,
        base=words,
        before=concept[0],
        after=concept[1],
        old=words,
        old_after=forgot,
        run={"seconds_per_step": 0.2},
        seconds={"training": 20.0},
        clips_sampled=60,
        first_frame_db=[29.0, 30.5],
        base_strips=[],
        concept_groups=[],
    )
    assert [check.name for check in found.failed()] == [
        "first frame kept, against the VAE's own reconstruction",
        "old captions kept: colour",
        "old captions kept: all",
    ]
    assert [check.wanted for check in found.failed()][1:] == [">= 90%"] * 2
    found.recipe = replace(found.recipe, prior_preservation=5.0)
    assert [check.wanted for check in found.failed()][1:] == [">= 90%", ">= 98%"], "the old world is to be kept then"
    found.recipe = replace(found.recipe, prior_preservation=0.0)
    assert "mean 29.8 dB, least 29.0 dB" in document(found)
    assert command(found) == (
        "python3 benchmarks/learning/concept_test.py --model t2v --concept circling_cross.json "
        "--concept-captions '{caption}' 'it is {caption}' --steps 50 --write-docs"
    )
    assert command(found) in document(found)
    assert "| old captions kept: colour | 85% (17 of 20) | >= 90% | MISSED |" in document(found)
