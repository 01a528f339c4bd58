"""Answers of a captioner: what is a caption, what is none, how openings go, and a caption for each shot of a video."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from wan_core.dataset import (
    CaptionEdits,
    CaptionRules,
    Dataset,
    DatasetConfig,
    ScanContext,
    ScanResult,
    answers_of,
    clips_by_name,
    dataset_facts,
    dataset_review,
    frames_to_look_at,
    scan_folder,
    scan_report,
    scanned_files,
)
from wan_core.errors import DatasetError
from wan_core.model import WAN21_LATENTS


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
        "The captioner gave no answer for a, c.",
        "The captioner refused b: \"I'm sorry, but I can't help.\".",
    )
    for names, given, why in (
        ("ab", ["x"], "There are 2 clips and 1 captions"),
        ("ab", ["", " "], "gave no answer for a, b. No caption is written"),
        ("abc", ["A cat."] * 3, 'gave all 3 clips the same caption: "A cat."'),
    ):
        with pytest.raises(DatasetError, match=why):
            answers_of(list(names), given, CaptionRules())
    assert len(answers_of(list("ab"), ["A cat."] * 2, CaptionRules()).captions) == 2


@pytest.fixture
def folder(make_clip) -> Path:
    """A red, a blue and a dark green shot, which start at 0, 1.25 and 2.5 s."""
    pictures = [np.full((48, 64, 3), 10, np.uint8) for _ in range(60)]
    for number, picture in enumerate(pictures):
        picture[..., (0, 2, 1)[number // 20]] = (200, 200, 90)[number // 20] + number % 2
    return make_clip("clips/long.mp4", frames=pictures).parent


def scanned(folder: Path, video, **changes: Any) -> ScanResult:
    values = {"folder": "clips", "width": 64, "height": 48, "num_frames": 9, "split_scenes": True}
    return scan_folder(DatasetConfig(**{**values, **changes}), folder, ScanContext(video))


def test_each_shot_of_a_long_video_is_captioned_and_put_back(folder: Path, video) -> None:
    dataset = Dataset((scanned(folder, video),))
    edits = CaptionEdits(scanned_files(dataset), lambda: [folder])
    clips = clips_by_name(edits)
    assert list(clips) == ["long.mp4@0.00s", "long.mp4@1.25s", "long.mp4@2.50s"]
    looked = frames_to_look_at(dataset, [edits.shot_of(one.clip) for one in clips.values()], video, 2, 64)
    assert [np.argmax(frames.mean((0, 1, 2))) for frames in looked if not isinstance(frames, str)] == [0, 2, 1]
    done = edits.write_all((clips[f"long.mp4@{at}s"].clip, "", f"shot at {at}") for at in ("0.00", "2.50"))
    assert sorted(path.name for path in folder.glob("*.txt")) == ["long@0.00s.txt", "long@2.50s.txt"]
    # A shot without its own caption has that of the file, as long as there is one.
    assert [(s.caption, s.caption_from) for s in scanned(folder, video).samples][1] == ("", "none")
    (folder / "long.txt").write_text("a film")
    result = scanned(folder, video)
    assert [s.caption for s in result.samples] == ["shot at 0.00", "a film", "shot at 2.50"]
    assert [file.caption_file.name for file in scanned_files(Dataset((result,)))] == [
        "long@0.00s.txt", "long.txt", "long@2.50s.txt",
    ]  # fmt: skip
    facts = dataset_facts(dataset_review(Dataset((result,)), video=video, digest_of=str, space=WAN21_LATENTS))
    assert [cell["clip"] for cell in facts["sheet"]["cells"]] == [0, 1, 2]
    assert edits.undo(done.change).clips == 2
    assert [path.name for path in folder.glob("*.txt")] == ["long.txt"]


def test_a_caption_is_read_for_the_nearest_shot_and_one_of_no_shot_is_named(folder: Path, video, make_clip) -> None:
    for name in ("long@0.00s", "long@1.31s", "long@2.61s", "other@0.00s"):
        (folder / f"{name}.txt").write_text(name)
    result = scanned(folder, video, trigger_word="sks")
    assert [(s.caption, s.caption_from) for s in result.samples] == [
        ("sks, long@0.00s", "shot+trigger"), ("sks, long@1.31s", "shot+trigger"), ("sks", "trigger"),
    ]  # fmt: skip
    report = scan_report(result)
    assert "captions: 2 of 3 from .txt files" in report
    assert "captions of shots that are not read, because no trained shot has their start: long@2.61s.txt" in report
    skipping = scanned(folder, video, missing_captions="skip the file")
    assert [item.name for item in skipping.rejected] == ["long.mp4@2.50s"]
    (last,) = (file for file in scanned_files(Dataset((skipping,))) if file.shot_s == 2.5)
    assert last.caption_file.name == "long@2.50s.txt"
    # A clip of such a name has its own caption, as before.
    make_clip("clips/long@1.31s.mp4")
    assert [s.caption for s in scanned(folder, video, trigger_word="sks").samples] == [
        "sks, long@0.00s", "sks", "sks", "sks, long@1.31s",
    ]  # fmt: skip
    whole = scanned(folder, video, split_scenes=False, trigger_word="sks")
    assert "not read, because split_scenes is off: long@0.00s.txt, long@2.61s.txt" in scan_report(whole)
