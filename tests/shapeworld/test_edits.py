"""Edits: what is wanted is what the judge finds, and neither the source nor another pair's answer passes for it."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from .concept import load_concept
from .edits import Edit, concept_edit, drawn_edit, write_edits, write_questions
from .files import drawn, read_clip
from .scenes import Words

CONCEPTS = Path(__file__).parent / "concepts"
STAR = load_concept(CONCEPTS / "bouncing_star.json")
RINGS = [drawn_edit(seed, ["ring"]) for seed in range(2)]
EDITS = [*(drawn_edit(seed) for seed in range(4)), *RINGS, *(concept_edit(STAR, seed) for seed in range(2))]


@pytest.mark.parametrize("edit", EDITS)
def test_the_judge_finds_what_is_wanted_and_not_the_source(edit: Edit) -> None:
    assert edit.found_in(drawn(edit.wanted)).all
    source = edit.found_in(drawn(edit.source))
    assert (source.shape, source.colour) == (False, False)


def test_a_reference_shows_the_shapes_that_it_may() -> None:
    assert {edit.shown.shape for edit in RINGS if isinstance(edit.shown, Words)} == {"ring"}


def test_pairs_are_files_that_a_dataset_reads(tmp_path: Path) -> None:
    write_edits(tmp_path, EDITS[:1])
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        *("0000.mp4", "0000.txt", "0000_ref1.png", "0000_source.mp4"),
    ]
    assert read_clip(tmp_path / "0000_source.mp4").shape == (9, 64, 64, 3)
    assert np.array_equal(np.asarray(Image.open(tmp_path / "0000_ref1.png")), EDITS[0].picture)


def test_questions_come_in_the_order_in_which_core_lists_images(tmp_path: Path) -> None:
    listed = write_questions(tmp_path / "sources", tmp_path / "references", EDITS[:4])
    for number, (edit, file) in enumerate(zip(listed, os.listdir(tmp_path / "references"), strict=True)):
        assert np.array_equal(np.asarray(Image.open(tmp_path / "references" / file)), edit.picture)
        source = read_clip(tmp_path / "sources" / f"{number:04d}.mp4").astype(int)
        assert np.abs(source - drawn(edit.source)).mean() < 5
