"""The learning bench without a training: its result file, its figures, its switch for unseen concepts."""

from __future__ import annotations

import contextlib
import json
import math
from pathlib import Path
from typing import Any, cast
from xml.etree import ElementTree

import pytest
from learning import bench
from learning.bench_cell import BenchStudy, trial_of
from learning.bench_file import CELL, CHOICE, DuplicateError, Line, ResultFile, claimed
from learning.bench_many import run_one
from learning.bench_recipes import RECIPES
from learning.bench_report import against, bootstrap, page, picture


def line_of(**changes: Any) -> Line:
    cell = {"kind": CELL, "recipe": "ours", "rate": 4e-3, "concept": 1000, "seed": 0, "steps": 400}
    facts = {"clips": 12, "shape": 8, "path": 9, "colour": 12, "size": 12, "speed": 12, "all": 6, "train_cpu_s": 20.0}
    where = {"sample_cpu_s": 4.0, "cpu": "a CPU", "torch": "2", "threads": 1}
    return cell | facts | where | changes


class StudyWithoutTraining:
    """Gives each cell the same figures, and counts them."""

    def __init__(self) -> None:
        self.ran: list[Line] = []

    def cell(self, cell: Line) -> Line:
        self.ran.append(cell)
        return {**line_of(), **cell, "each": "1" * 12, "eval_before": 1.0, "eval_after": 0.5, "weights": "aa"}


def ran(study: StudyWithoutTraining, folder: Path, *arguments: str) -> list[Line]:
    asked = bench.options().parse_args([*arguments, "--results", str(folder / "r.jsonl"), "--work", str(folder)])
    results = ResultFile(asked.results)
    for seed in (1000, 1001, 1002, 2000, 2001):
        with contextlib.suppress(DuplicateError):
            results.append({"kind": CHOICE, "concept": seed, "usable": seed != 1001})
    for cell in bench.unfinished(results, asked)():
        run_one(cast("BenchStudy", study), results, asked.work, cell, {})
    return results.lines()


def test_a_cell_is_written_once_and_a_line_that_was_cut_off_is_written_again(tmp_path: Path) -> None:
    results = ResultFile(tmp_path / "r.jsonl")
    results.append(line_of())
    with pytest.raises(DuplicateError, match=r"r\.jsonl has \('cell', 'ours', 0\.004, 1000, 0, 400\) already"):
        results.append(line_of(all=0))
    with results.file.open("a") as stream:
        stream.write(json.dumps(line_of(concept=1001))[:50])
    assert [line["concept"] for line in results.lines()] == [1000]
    results.append(line_of(concept=1001))
    assert [line["concept"] for line in results.lines()] == [1000, 1001]


def test_a_claimed_cell_is_another_process_s_until_it_ends(tmp_path: Path) -> None:
    other_cell = claimed(tmp_path, line_of(steps=100))
    with claimed(tmp_path, line_of()) as first, claimed(tmp_path, line_of()) as second, other_cell as other:
        assert (first, second, other) == (True, False, True)
    with claimed(tmp_path, line_of()) as now:
        assert now


def test_finished_cells_are_skipped_and_claimed_ones_left_to_their_process(tmp_path: Path) -> None:
    study = StudyWithoutTraining()
    arguments = ("--recipes", "ours", "musubi", "--concepts", "2")
    with claimed(tmp_path, line_of(concept=1002)):
        ran(study, tmp_path, *arguments)
    assert [cell["concept"] for cell in study.ran] == [1000, 1000, 1002]
    assert len(ran(study, tmp_path, *arguments)) == len(study.ran) == 4
    assert [cell["rate"] for cell in study.ran] == [4e-3, 8e-3, 8e-3, 4e-3]


def test_unseen_concepts_need_the_switch_and_are_marked(tmp_path: Path) -> None:
    (line,) = ran(StudyWithoutTraining(), tmp_path, "--recipes", "ours", "--concepts", "1", "--unseen")
    assert (line["concept"], line["unseen"]) == (2000, True)
    usual = ran(StudyWithoutTraining(), tmp_path / "b", "--recipes", "ours")
    assert [line["concept"] for line in usual] == [1000, 1002]
    assert not any("unseen" in line for line in usual)


def test_a_repeated_cell_is_compared_to_the_last_digit(tmp_path: Path) -> None:
    study = StudyWithoutTraining()
    ran(study, tmp_path, "--recipes", "ours", "--concepts", "1")
    asked = bench.options().parse_args(["--recipes", "ours", "--results", str(tmp_path / "r.jsonl")])
    assert bench.run_again(cast("BenchStudy", study), ResultFile(asked.results), asked) == 0
    study.cell = lambda cell: line_of(**cell, each="1" * 12, eval_before=1.0, eval_after=0.5, weights="ab")  # type: ignore[method-assign]
    assert bench.run_again(cast("BenchStudy", study), ResultFile(asked.results), asked) == 1
    assert [line["different"] for line in ResultFile(asked.results).lines("again")] == [[], ["weights"]]


def test_the_error_is_that_of_a_mean_over_concepts() -> None:
    assert bootstrap([0.5] * 20) == (0.5, 0.0)
    mean, error = bootstrap([0.0, 1.0] * 10)
    assert mean == 0.5
    assert error == pytest.approx(math.sqrt(0.25 / 20), rel=0.04)
    assert against({1: 0.5, 2: 0.9, 3: 1.0}, {1: 0.25, 2: 0.65}) == "+25 ± 0", "paired: concepts alone do not differ"


def test_the_page_says_what_its_lines_say(tmp_path: Path) -> None:
    results = ResultFile(tmp_path / "r.jsonl")
    for steps in (100, 400):
        for concept, right in ((1000, 6), (1002, 12)):
            results.append(line_of(concept=concept, steps=steps, all=right if steps == 400 else 0))
            results.append(line_of(concept=concept, steps=steps, recipe="musubi", rate=8e-3, all=0))
    results.append(line_of(recipe="musubi", rate=1.6e-2, all=12))
    written = page(results)
    assert "| ours | 0.004 | 2 | 75 ± 17 |  |  |" in written
    assert "| musubi | 0.008 of 2 (at the edge) | 2 | 0 ± 0 | -75 ± 17 |  |" in written, "not the rate of one concept"
    assert "| musubi | 0.016 |  | 1 | 100 |" in written, "one concept has no error"
    assert "| ours | 0 ± 0 in 20 s | 75 ± 17 in 20 s |" in written
    assert "Not run yet." in written
    assert len(ElementTree.fromstring(picture(results)).findall("{*}polyline")) == 2


def test_the_committed_picture_is_what_the_committed_lines_say() -> None:
    assert picture(ResultFile(bench.RESULTS)) == bench.PICTURE.read_text(encoding="utf-8")


@pytest.mark.soak  # its columns of size and speed draw forty concepts
def test_the_committed_page_and_picture_are_what_the_committed_lines_say() -> None:
    """`python benchmarks/learning/bench.py --write-docs` writes them."""
    results = ResultFile(bench.RESULTS)
    assert page(results) == bench.PAGE.read_text(encoding="utf-8")
    assert picture(results) == bench.PICTURE.read_text(encoding="utf-8")
    assert all(bench.is_unseen(line["concept"]) == bool(line.get("unseen")) for line in results.lines())


@pytest.mark.parametrize("name", [name for name, recipe in RECIPES.items() if recipe.trainer == "ours"])
def test_every_recipe_is_one_that_trains(name: str) -> None:
    recipe = RECIPES[name]
    assert len(recipe.rates) == 5
    assert list(recipe.rates) == sorted(recipe.rates)
    trial = trial_of(recipe, recipe.own_rate, seed=0, steps=100)
    assert trial.train_config().learning_rate == recipe.own_rate
    assert trial.train_config().warmup < 100
    assert trial.lora_config().rank == recipe.lora.get("rank", 16)
