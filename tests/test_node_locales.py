"""Every node is named and explained in every language, and no translation outlives a change of its English text."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import make_locales
import pytest
from make_locales import TRANSLATIONS, Definitions, entries, marked, read_marks, stale
from support.translations import SPECIAL, problems

LOCALES = make_locales.LOCALES


def definitions(language: str) -> Definitions:
    return json.loads((LOCALES / language / "nodeDefs.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def english() -> Definitions:
    return definitions("en")


@pytest.fixture(scope="module")
def shapes(repo: Path) -> dict[str, Any]:
    return json.loads((repo / "tests" / "nodes" / "schemas.json").read_text(encoding="utf-8"))


def test_english_names_every_pinned_node_input_and_output(english: Definitions, shapes: dict[str, Any]) -> None:
    assert list(english) == list(shapes)
    for node_id, shape in shapes.items():
        assert list(english[node_id]["inputs"]) == [entry["name"] for entry in shape["inputs"]]
        assert [entry["name"] for entry in english[node_id]["outputs"].values()] == [
            entry["name"] for entry in shape["outputs"]
        ]


@pytest.mark.parametrize("language", TRANSLATIONS)
def test_every_node_input_and_output_is_translated(english: Definitions, shapes: dict[str, Any], language: str) -> None:
    assert problems(english, definitions(language), shapes, language) == []


@pytest.mark.parametrize("language", TRANSLATIONS)
def test_no_translation_outlived_its_english_text(english: Definitions, language: str) -> None:
    marks = read_marks()[language]
    assert stale(english, marks) == [], "translate anew, then scripts/generators/make_locales.py --translated"
    assert set(marks) == set(entries(english))


def test_english_has_nothing_that_is_read_as_syntax(english: Definitions) -> None:

    assert [
        name for name, entry in entries(english).items() for text in entry.values() if re.search(SPECIAL, text)
    ] == []


def _without_a_node(zh: Definitions) -> None:
    del zh["TrainLoRA"]


def _without_an_input(zh: Definitions) -> None:
    del zh["TrainLoRA"]["inputs"]["model"]


def _without_an_output(zh: Definitions) -> None:
    del zh["TrainLoRA"]["outputs"]["0"]


def _without_a_tooltip(zh: Definitions) -> None:
    del zh["TrainLoRA"]["inputs"]["steps"]["tooltip"]


def _with_an_unknown_input(zh: Definitions) -> None:
    zh["TrainLoRA"]["inputs"]["stepz"] = zh["TrainLoRA"]["inputs"]["steps"]


def _with_an_english_name(zh: Definitions) -> None:
    zh["TrainLoRA"]["inputs"]["run_name"]["name"] = "Run_name"


def _with_an_english_tooltip(zh: Definitions) -> None:
    zh["TrainLoRA"]["inputs"]["cache"]["tooltip"] = "From CacheLatents or any node with a cache."


def _with_another_number(zh: Definitions) -> None:
    tooltip = zh["TrainLoRA"]["inputs"]["learning_rate"]["tooltip"]
    zh["TrainLoRA"]["inputs"]["learning_rate"]["tooltip"] = tooltip.replace("5e-5", "5e-6")


def _with_a_translated_option(zh: Definitions) -> None:
    tooltip = zh["TrainLoRA"]["inputs"]["resume"]["tooltip"]
    zh["TrainLoRA"]["inputs"]["resume"]["tooltip"] = tooltip.replace("require", "必须")


def _with_a_translated_default(zh: Definitions) -> None:
    tooltip = zh["ValidateVideo"]["inputs"]["saved_steps"]["tooltip"]
    zh["ValidateVideo"]["inputs"]["saved_steps"]["tooltip"] = tooltip.replace("latest", "最新")


def _with_a_lost_identifier(zh: Definitions) -> None:
    tooltip = zh["TrainLoRA"]["inputs"]["run_name"]["tooltip"]
    zh["TrainLoRA"]["inputs"]["run_name"]["tooltip"] = tooltip.replace("output/wan_trainer", "输出文件夹")


def _with_a_label_too_long(zh: Definitions) -> None:
    zh["TrainLoRA"]["inputs"]["rank"]["name"] = "低秩适配器矩阵的秩也就是网络维度"


def _with_a_brace(zh: Definitions) -> None:
    zh["TrainLoRA"]["inputs"]["rank"]["name"] = "秩{rank}"


def _with_two_words_for_one_thing(zh: Definitions) -> None:
    zh["WanDatasetFromFile"]["inputs"]["width"]["name"] = "宽"


def _with_a_renamed_input(zh: Definitions) -> None:
    zh["WanDatasetSettings"]["inputs"]["variants"]["name"] = "候选数"


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (_without_a_node, "TrainLoRA: is missing"),
        (_without_an_input, "TrainLoRA.inputs.model: is missing"),
        (_without_an_output, "TrainLoRA.outputs.0: is missing"),
        (_without_a_tooltip, "TrainLoRA.inputs.steps: has ['name']"),
        (_with_an_unknown_input, "TrainLoRA.inputs.stepz: is nothing the nodes have"),
        (_with_an_english_name, "TrainLoRA.inputs.run_name.name: is the English text"),
        (_with_an_english_tooltip, "TrainLoRA.inputs.cache.tooltip: is not zh"),
        (_with_another_number, "TrainLoRA.inputs.learning_rate.tooltip: numbers are"),
        (_with_a_translated_option, "TrainLoRA.inputs.resume.tooltip: the value 'require' must stand in it"),
        (_with_a_translated_default, "ValidateVideo.inputs.saved_steps.tooltip: the value 'latest' must stand in it"),
        (_with_a_lost_identifier, "TrainLoRA.inputs.run_name.tooltip: ['output/wan_trainer'] must stand in it"),
        (_with_a_label_too_long, "TrainLoRA.inputs.rank.name: "),
        (_with_a_brace, "TrainLoRA.inputs.rank.name: '{' would be read as syntax"),
        (_with_a_renamed_input, "WanDatasetSettings.inputs.crop: calls variants otherwise than '候选数'"),
        (_with_two_words_for_one_thing, "WanDatasetFromFile.inputs.width: differs from WanVideoDataset.inputs.width"),
    ],
)
def test_what_is_wrong_with_a_translation_is_said(
    english: Definitions, shapes: dict[str, Any], spoil: Callable[[Definitions], None], said: str
) -> None:
    zh = copy.deepcopy(definitions("zh"))
    spoil(zh)
    assert [line for line in problems(english, zh, shapes, "zh") if line.startswith(said)] != []


def test_english_left_in_spanish_is_said(english: Definitions, shapes: dict[str, Any]) -> None:
    es = copy.deepcopy(definitions("es"))
    es["TrainLoRA"]["inputs"]["steps"]["tooltip"] = "Optimizer steps of the run."
    assert any(
        line.startswith("TrainLoRA.inputs.steps.tooltip: English") for line in problems(english, es, shapes, "es")
    )


def test_a_changed_english_text_makes_its_translation_stale_until_it_is_named(english: Definitions) -> None:
    marks = read_marks()["ja"]
    changed = copy.deepcopy(english)
    steps, rank = changed["TrainLoRA"]["inputs"]["steps"], changed["TrainLoRA"]["inputs"]["rank"]
    steps["tooltip"] = "And more. " + steps["tooltip"]
    rank["tooltip"] = rank["tooltip"].replace("Default: 16.", "Default: 32.")  # translated by the generator
    assert rank != english["TrainLoRA"]["inputs"]["rank"]
    changed["ApplyWanLoRA"]["description"] += " And more."
    assert stale(changed, marks) == ["TrainLoRA.inputs.steps", "ApplyWanLoRA"]
    assert stale(changed, marked(changed, marks, ["TrainLoRA.inputs.steps"])) == ["ApplyWanLoRA"]
    assert stale(changed, marked(changed, marks, ["ApplyWanLoRA.*"])) == ["TrainLoRA.inputs.steps"]
    assert stale(english, marks) == []


@pytest.mark.parametrize("pattern", ["*", "*.*", ".*", "", "TrainLora", "TrainLoRA.inputs.*", "TrainLoRA.inputs.stepz"])
def test_entries_are_marked_by_name_never_all_at_once(english: Definitions, pattern: str) -> None:
    with pytest.raises(ValueError, match="is no entry"):
        marked(english, {}, [pattern])


def test_marks_of_entries_that_are_gone_are_dropped(english: Definitions) -> None:
    assert marked(english, {"Gone": "0123456789"}, ["TrainLoRA"]).keys() == {"TrainLoRA"}
