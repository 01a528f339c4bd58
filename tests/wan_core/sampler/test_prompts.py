"""A library of prompts: a line each or JSON of nicknames, with suffixes; what is wrong is named by its place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from wan_core.errors import ConfigError
from wan_core.sampler import PreviewPrompt, SampleConfig, read_prompts
from wan_core.sampler.prompts import file_name_of


def test_a_plain_list_is_what_it_was() -> None:
    found = read_prompts("  a red ball \n\n# put away\na dog -- running, 2--3 years old\n")
    assert found == [("a red ball", PreviewPrompt()), ("a dog -- running, 2--3 years old", PreviewPrompt())]
    assert read_prompts("") == []


def test_the_mark_that_editors_begin_a_file_with_is_no_part_of_a_prompt() -> None:
    assert [prompt for prompt, _ in read_prompts("\ufeff# ours\na cat")] == ["a cat"]
    assert [own.name for _, own in read_prompts('\ufeff{"ball": "a red ball"}')] == ["ball"]


def test_the_library_of_fifteen_names_the_trigger_in_all_but_two() -> None:
    written = (Path(__file__).parents[3] / "docs" / "use" / "prompt_library.json").read_text(encoding="utf-8")
    found = read_prompts(written, "ohwx fox")
    assert len({own.name for _, own in found}) == len({prompt for prompt, _ in found}) == 15
    assert [own.name for prompt, own in found if "ohwx fox" not in prompt] == ["without", "other-subject"]


def test_suffixes_of_kohya_and_musubi_are_settings_of_that_prompt() -> None:
    ((prompt, own),) = read_prompts("a cat --w 480 --h 832 --f 33 --s 30 --d 7 --l 4.5 --fs 3 --n blurry, dark")
    assert prompt == "a cat"
    assert own == PreviewPrompt(
        width=480, height=832, num_frames=33, steps=30, seed=7, cfg=4.5, shift=3.0, negative_prompt="blurry, dark"
    )


def test_a_json_list_gives_a_prompt_for_each_of_its_texts() -> None:
    found = read_prompts(' [\n"a red ball --s 4",\n "a  dog, [trigger]"]', "sks")
    assert found == [("a red ball", PreviewPrompt(steps=4)), ("a dog, sks", PreviewPrompt())]
    assert [prompt for prompt, _ in read_prompts("[trigger] runs\n[a note] a dog", "sks")] == [
        "sks runs",
        "[a note] a dog",
    ]


def test_json_gives_nicknames_in_its_order() -> None:
    found = read_prompts(json.dumps({"Rote Kugel": "a red ball", "dog/1": "a dog\nruns --s 4"}))
    assert [(prompt, own.name, own.steps) for prompt, own in found] == [
        ("a red ball", "Rote Kugel", 0),
        ("a dog runs", "dog/1", 4),
    ]


def test_the_trigger_word_takes_the_place_of_its_mark() -> None:
    assert read_prompts("[trigger] smiles at [trigger]", "ohwx")[0][0] == "ohwx smiles at ohwx"


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (
            "fine\na cat --x 3",
            r"prompts, line 2: --x is not a setting of a prompt\. Use --w --h --f --s --d --l --fs --n\.",
        ),
        ("a cat --w wide", r'prompts, line 1: --w "wide" is not a whole number\. Example: --w 33'),
        ("a cat --w640", r"prompts, line 1: --w640 is not a setting of a prompt\. Use --w --h "),
        ("a cat --w=640 --s 4", r"prompts, line 1: --w=640 is not a setting of a prompt"),
        ("a cat --l", r'prompts, line 1: --l "" is not a number'),
        ("\n\n--w 480", r"prompts, line 3: there is no prompt before --w\. Write it in front\."),
        ("a [trigger]", r"prompts, line 1: there is no trigger word for \[trigger\]\. Write it into trigger_word\."),
        ('["x", "y"', r"prompts, line 1: this is no JSON "),
        ('["x", ""]', r'prompts, number 2 of the list is "", which is not text\. Write \["one", "two"\], or \{"nick'),
        ('[{"prompt": "x"}]', r'prompts, number 1 of the list is \{"prompt": "x"\}, which is not text\. Write'),
        ('["x", 3]', r"prompts, number 2 of the list is 3, which is not text"),
        ('{"a": "x",\n "b" "y"}', r'prompts, line 2: this is no JSON .*Write \{"nickname": "prompt"\}'),
        ('{"a": 5}', r'prompts, "a": the prompt is missing\. Write "a": "what the clip shows"\.'),
        ('{"a": " "}', r'prompts, "a": the prompt is missing'),
        ('{"a": ' + "1" * 4301 + "}", r"prompts, line 1: this is no JSON \(Exceeds the limit .*Write"),
        ('{"a": "x", "a": "y"}', r'prompts, "a": the nickname occurs twice\. Rename one of them\.'),
    ],
)
def test_what_is_wrong_is_named_with_its_place_and_what_to_write(written: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_prompts(written)


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("red ball", "red-ball"),
        ("../../etc", "etc"),
        ("a_b.c", "a-b-c"),
        ("红球", ""),
        ("CON", "CON"),
        ("x" * 90, "x" * 40),
    ],
)
def test_a_nickname_is_safe_in_a_file_name(name: str, file: str) -> None:
    assert file_name_of(name) == file
    config = SampleConfig(prompts=("a",), prompt_settings=(PreviewPrompt(name=name),))
    assert config.clip_name("step-000250", 0) == "step-000250_p0" + (f"_{file}" if file else "")


def test_a_prompt_has_its_settings_and_leaves_the_others_to_all() -> None:
    own = PreviewPrompt(width=480, seed=0, negative_prompt="", negative_key="n", condition_key="c")
    config = SampleConfig(
        prompts=("a", "b"), prompt_settings=(own, PreviewPrompt()), width=832, steps=9, negative_key="all", seed=5
    )
    first, second = config.of_prompt(0), config.of_prompt(1)
    assert (first.width, first.steps, first.seed, first.negative_key, first.condition_key) == (480, 9, 0, "n", "c")
    assert (second.width, second.steps, second.seed, second.negative_key) == (832, 9, 5, "all")
    assert SampleConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    with pytest.raises(ConfigError, match="is not 4n"):
        SampleConfig(prompts=("a",), prompt_settings=(PreviewPrompt(num_frames=30),)).of_prompt(0)
    with pytest.raises(ConfigError, match="2 prompts and prompt_settings for 1"):
        SampleConfig(prompts=("a", "b"), prompt_settings=(own,))
