"""Answers of a captioner: what is a caption, what is none, and how openings go."""

from __future__ import annotations

import pytest

from wan_core.dataset import CaptionRules, answers_of
from wan_core.errors import DatasetError


@pytest.mark.parametrize(
    ("answer", "caption"),
    [
        ("The video shows a red fox.\n It runs.", "A red fox. It runs."),
        ('"In this short video clip, we see a man walking."', "A man walking."),
        ("Sure! Here is a caption for the video: The clip depicts waves.", "Waves."),
        ("<think>The video shows what?</think>A dog barks.", "A dog barks."),
        ("The video camera on a table.", "The video camera on a table."),
        ("the scene opens with rain", "Rain"),
        ("这段视频展示了一只猫。", "一只猫。"),
        ("视频游戏角色在奔跑。", "视频游戏角色在奔跑。"),
    ],
)
def test_openings_quotes_and_reasoning_go_and_words_stay(answer: str, caption: str) -> None:
    assert answers_of(["a"], [answer], CaptionRules()).captions == {"a": caption}
    kept = answers_of(["a"], [answer], CaptionRules(clean_up=False)).captions
    assert kept == {"a": " ".join(answer.split())}


def test_the_trigger_word_and_the_prefix_come_first_once() -> None:
    rules = CaptionRules(trigger_word="sks", prefix="ink drawing,")
    answers = answers_of(["a", "b"], ["a fox", "sks runs"], rules)
    assert answers.captions == {"a": "sks, ink drawing, a fox", "b": "ink drawing, sks runs"}
    assert answers.lengths() == "about 9 tokens (median), 9 (longest), of at most 512"


def test_answers_that_are_no_captions_are_named() -> None:
    answers = answers_of(
        ["a", "b", "c", "d"], ["", "I'm sorry, but I can't help.", "<think>so", "A fox."], CaptionRules()
    )
    assert answers.captions == {"d": "A fox."}
    assert answers.unusable == (
        "The captioner answered nothing for a, c.",
        "The captioner refused b: \"I'm sorry, but I can't help.\".",
    )
    for names, given, why in (
        ("ab", ["x"], "There are 2 clips and 1 captions"),
        ("ab", ["", " "], "answered nothing for a, b. No caption is written"),
        ("abc", ["A cat."] * 3, 'gave all 3 clips the same caption: "A cat."'),
    ):
        with pytest.raises(DatasetError, match=why):
            answers_of(list(names), given, CaptionRules())
    assert len(answers_of(list("ab"), ["A cat."] * 2, CaptionRules()).captions) == 2
