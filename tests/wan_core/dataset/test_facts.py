"""What a dataset card draws: the scan and its review as plain data."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from wan_core.dataset import (
    Dataset,
    DatasetConfig,
    MediaFile,
    ScanContext,
    Thumbnails,
    contact_sheet,
    dataset_facts,
    dataset_review,
    scan_files,
    scan_folder,
    scan_report,
)
from wan_core.dataset.files import SourcePart
from wan_core.errors import DatasetError
from wan_core.files import digest_file
from wan_core.model import WAN21_LATENTS
from wan_core.video import VideoProcess

SHAPE = {"width": 64, "height": 48, "num_frames": 9, "trigger_word": "x"}


@pytest.fixture
def folder(tmp_path: Path, make_clip: Callable[..., Path]) -> Path:
    """Two clips of which one is fast, a copy of it, a tall still, a clip that is too short, one that is held out."""
    for name, facts in {
        "a": {"num_frames": 20},
        "fast": {"num_frames": 40, "fps": 32},
        "held": {"num_frames": 30},
        "short": {"num_frames": 4},
    }.items():
        make_clip(f"clips/{name}.mp4", **facts)
    found = tmp_path / "clips"
    (found / "fast_copy.mp4").write_bytes((found / "fast.mp4").read_bytes())
    Image.fromarray(np.full((96, 64, 3), 90, np.uint8)).save(found / "tall.png")
    (found / "a.txt").write_text("a clip", encoding="utf-8")
    return found


def facts_of(dataset: Dataset, video: VideoProcess) -> dict[str, Any]:
    facts = dataset_facts(dataset_review(dataset, video=video, digest_of=digest_file, space=WAN21_LATENTS))
    assert json.loads(json.dumps(facts)) == facts, "not plain data"
    return facts


def test_the_facts_say_what_the_report_says(folder: Path, video: VideoProcess) -> None:
    config = DatasetConfig(**SHAPE, held_out=("held",), folder="clips")
    facts = facts_of(Dataset((scan_folder(config, folder, ScanContext(video)),)), video)
    counts = {name: facts[name] for name in ("folders", "clips", "stills", "samples", "fps", "captions")}
    assert counts == {"folders": ["clips"], "clips": 4, "stills": 1, "samples": 5, "fps": 16.0, "captions": 2}
    assert facts["held_out"] == {"count": 1, "names": ["held.mp4"]}
    assert facts["left_out"]["count"] == 1
    assert facts["left_out"]["files"][0]["name"] == "short.mp4"
    assert "4 frames" in facts["left_out"]["files"][0]["reason"]
    findings = {finding.pop("kind"): finding for finding in facts["findings"]}
    assert findings["faster"] == {"count": 2, "names": ["fast.mp4", "fast_copy.mp4"]}
    assert findings["same_bytes"] == {"count": 1, "names": ["fast.mp4, fast_copy.mp4"]}
    assert findings["trigger_alone"]["count"] == 4
    assert "no_caption" not in findings, "a finding that counts nothing is none"


@pytest.mark.parametrize("conditioning", ["first", "first_vision", "first_last"])
def test_stills_alone_are_a_finding_where_the_model_is_given_them_whole(
    tmp_path: Path, make_clip: Callable[..., Path], video: VideoProcess, conditioning: str
) -> None:
    for number in range(2):
        Image.fromarray(np.full((48, 64, 3), 90 * number, np.uint8)).save(tmp_path / f"{number}.png")

    def found(**settings: Any) -> tuple[dict[str, Any], str]:
        config = DatasetConfig(**SHAPE | settings)
        dataset = Dataset((scan_folder(config, tmp_path, ScanContext(video)),))
        review = dataset_review(dataset, video=video, digest_of=digest_file, space=WAN21_LATENTS)
        return {one.pop("kind"): one for one in dataset_facts(review)["findings"]}, review.report()

    findings, report = found(conditioning=conditioning)
    assert findings["given_whole"] == {"count": 2, "names": ["0.png", "1.png"]}
    assert "nothing is left to predict" in report
    assert "given_whole" not in found(conditioning="none")[0], "text-to-video, and TI2V-5B, which is given no still"
    (tmp_path / "a.mp4").write_bytes(make_clip("elsewhere/a.mp4", num_frames=20).read_bytes())
    assert "given_whole" not in found(conditioning=conditioning)[0], "stills beside clips are for looks"
    assert "given_whole" in found(conditioning=conditioning, num_frames=1)[0], "clips of which one frame is taken"
    five = found(conditioning=conditioning, num_frames=5)[0]
    assert "given_whole" not in five, "three frames between the first and the last are predicted"


def test_the_bucket_table_has_a_row_for_each_size_and_one_for_all(folder: Path, video: VideoProcess) -> None:
    config = DatasetConfig(**SHAPE, held_out=("held",), num_repeats=3)
    facts = facts_of(Dataset((scan_folder(config, folder, ScanContext(video)),)), video)
    assert facts["batch_sizes"] == [1, 2, 4]
    assert [list(row.values()) for row in facts["buckets"]] == [
        [9, 64, 48, 3, 0, 3, [9, 5, 3]],
        [1, 48, 64, 0, 1, 1, [3, 2, 1]],
        [None, None, None, 3, 1, 4, [12, 7, 4]],
    ]


def test_the_cells_are_where_the_contact_sheet_has_them(folder: Path, video: VideoProcess) -> None:
    config = DatasetConfig(**SHAPE)
    dataset = Dataset(
        (scan_folder(config, folder, ScanContext(video)), scan_folder(config, folder, ScanContext(video)))
    )
    sheet, facts = contact_sheet(dataset, Thumbnails(video)), facts_of(dataset, video)["sheet"]
    high = facts["cell_height"] + facts["name_height"]
    assert sheet.shape == (facts["rows"] * high, facts["columns"] * facts["cell_width"], 3)
    assert [cell["name"] for cell in facts["cells"]] == [sample.name for sample in dataset.samples]
    tall = next(number for number, cell in enumerate(facts["cells"]) if cell["name"] == "tall.png")
    top, left = tall // facts["columns"] * high, tall % facts["columns"] * facts["cell_width"]
    middle = sheet[top + facts["cell_height"] // 2, left + facts["cell_width"] // 2]
    assert middle.tolist() == [90, 90, 90], "another picture lies there"
    assert facts["cells"][tall] == {
        "clip": 4,
        "name": "tall.png",
        "kind": "still",
        "frames": 1,
        "width": 48,
        "height": 64,
        "caption": "x",
        "choice": {},
    }


def test_history_stays_small_whatever_the_dataset_is(folder: Path, video: VideoProcess) -> None:
    """One clip two hundred times under long names, with a long caption."""
    scanned = scan_folder(DatasetConfig(**SHAPE), folder, ScanContext(video))
    first = replace(scanned.samples[0], caption="word " * 600)
    many = tuple(replace(first, name=f"{'n' * 600}{k}.mp4", path=Path(f"{k}.mp4")) for k in range(200))
    rejected = tuple(replace(scanned.rejected[0], reason="r" * 5000) for _ in range(200))
    big = replace(scanned, samples=many, rejected=rejected)

    def digest(path: Path) -> str:
        return f"{int(path.stem):064x}"

    review = dataset_review(Dataset((big,)), video=video, digest_of=digest, space=WAN21_LATENTS, comparing_s=0.0)
    facts = dataset_facts(review)
    assert len(facts["sheet"]["cells"]) == 48
    assert facts["left_out"]["count"] == 200
    assert {finding["kind"]: finding["count"] for finding in facts["findings"]}["long_caption"] == 200
    assert len(json.dumps(facts)) < 100_000


@pytest.mark.parametrize(
    ("captions", "settings", "said", "findings"),
    [
        (("a red, blue car", "a green, long bus"), {}, ["captions: 1 of 1 from the list"], {}),
        (
            ("a red, blue car", "a green, long bus"),
            {"frame_extraction": "chunk", "caption_shuffles": 2},
            ["windows: chunk, 2 of 1 clip (2 of each)", "captions: 1 of 1 from the list", "tags: 1 of 1 captions"],
            {},
        ),
        (("a car", "a bus"), {"caption_shuffles": 2}, ["tags: 0 of 1 captions"], {}),
        (
            ("a car", ""),
            {},
            ["captions: 0 of 1", "no caption, so nothing is trained yet: a.mp4."],
            {"needs_caption": 1},
        ),
        (
            ("a car", ""),
            {"missing_captions": "empty caption"},
            ["captions: 0 of 1", "no caption, trained with the empty prompt: a.mp4"],
            {"no_caption": 1},
        ),
        (
            ("a car", ""),
            {"trigger_word": "x"},
            ["captions: 0 of 1", "no caption, trigger word 'x' used alone: a.mp4"],
            {"trigger_alone": 1},
        ),
        (("a car", "a bus " * 600), {}, ["probably truncated at 512 tokens: a.mp4"], {"long_caption": 1}),
    ],
)
def test_a_clip_listed_under_two_captions_is_one_file_in_every_line(
    captions: tuple[str, ...],
    settings: dict[str, Any],
    said: list[str],
    findings: dict[str, int],
    make_clip: Callable[..., Path],
    video: VideoProcess,
) -> None:
    config = DatasetConfig(**{**SHAPE, "trigger_word": "", **settings})
    files = [MediaFile(path=make_clip("clips/a.mp4", num_frames=20), caption=caption) for caption in captions]
    result = scan_files(config, SourcePart(name="list", files=tuple(files)), ScanContext(video))
    dataset = Dataset((result,))
    lines = scan_report(result).splitlines()
    assert lines[0] == "dataset: 1 clip, 0 stills"
    for beginning in said:
        assert any(line.startswith(beginning) for line in lines), lines
    facts = facts_of(dataset, video)
    assert (facts["clips"], facts["stills"], facts["samples"]) == (1, 0, len(result.samples))
    assert [(row["clips"], row["samples"]) for row in facts["buckets"]] == [(1, len(result.samples))]
    assert {finding["kind"]: finding["count"] for finding in facts["findings"]} == findings
    review = dataset_review(dataset, video=video, digest_of=digest_file, space=WAN21_LATENTS).report()
    assert f"9: 1 clip, {len(result.samples)} samples" in review
    if "needs_caption" in findings:
        with pytest.raises(DatasetError, match=r"^1 of 1 files have no caption: a\.mp4"):
            dataset.require_captions()
    else:
        dataset.require_captions()
