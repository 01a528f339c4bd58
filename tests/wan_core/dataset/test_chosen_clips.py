"""Choices in a folder reach every reader: what is trained, cut, cached and said follows them; no clip is touched."""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.support.bench import Bench, counts
from wan_core.cache.keys import transform_of
from wan_core.choices import CHOICES_FILE
from wan_core.dataset import (
    Dataset,
    DatasetConfig,
    MediaFile,
    ScanContext,
    Thumbnails,
    frames_to_look_at,
    read_sample,
    scan_files,
    scan_folder,
)
from wan_core.dataset.files import SourcePart, fingerprint_of_folder
from wan_core.dataset.report import scan_report
from wan_core.errors import DatasetError
from wan_core.importers import SourceFile, source_fingerprint


@pytest.fixture
def bench(tmp_path, make_clip, video):
    for number, name in enumerate("abc"):
        make_clip(f"clips/{name}.mp4", num_frames=30 + number)
        (tmp_path / "clips" / f"{name}.txt").write_text(f"caption {name}")
    return Bench(tmp_path / "clips", tmp_path / "cache", video)


def choose(folder: Path, **clips: dict[str, Any]) -> None:
    named = {f"{name}.mp4": choice for name, choice in clips.items()}
    (folder / CHOICES_FILE).write_text(json.dumps({"version": 1, "clips": named}))


def scanned(bench: Bench, **changes: Any):
    values = {**bench.settings, "num_frames": 9, **changes}
    return scan_folder(DatasetConfig(**values), bench.folder, ScanContext(bench.video))


def hows(result) -> dict[str, Any]:
    """The part of a cache key that says how a clip is read."""
    return {sample.name: transform_of(sample, 16.0) for sample in result.samples}


def test_an_excluded_clip_is_not_trained_and_the_others_keep_their_entries(bench):
    plain, before = scanned(bench), {path: path.read_bytes() for path in bench.folder.iterdir()}
    assert hows(plain)["a.mp4"] == {
        "kind": "clip",
        "reader": 2,
        "width": 64,
        "height": 48,
        "fit": "cover",
        "num_frames": 9,
        "fps": 16.0,
        "start_s": 0.0,
    }, "a folder without choices has the keys of every version before them"
    choose(bench.folder, b={"excluded": True})
    result = scanned(bench)
    assert [sample.name for sample in result.samples] == ["a.mp4", "c.mp4"]
    assert [sample.name for sample in result.excluded] == ["b.mp4"]
    assert hows(result) == {name: how for name, how in hows(plain).items() if name != "b.mp4"}
    assert "wan_dataset.json: excluded: b.mp4" in scan_report(result).splitlines()
    assert {path: path.read_bytes() for path in before} == before
    choose(bench.folder)
    assert scanned(bench) == plain


def test_a_piece_is_the_stretch_that_windows_are_cut_from(bench):
    choose(bench.folder, a={"start_s": 0.5, "length_s": 1.125}, b={"start_s": 1})
    result = scanned(bench)
    places = [(sample.name, sample.cut.start_s, sample.bucket.num_frames) for sample in result.samples]
    assert places == [("a.mp4", 0.5, 9), ("b.mp4", 1.0, 9), ("c.mp4", 0.0, 9)]
    first = read_sample(bench.video, result.samples[0], 16.0)
    # Frame k of make_clip has the grey level 8k: half a second at 16 fps is frame 8.
    assert abs(int(first[0].mean()) - 64) < 4
    windows = [s.cut.start_s for s in scanned(bench, frame_extraction="chunk").samples if s.name == "a.mp4"]
    assert windows == [0.5, 0.5 + 9 / 16], "18 frames are two windows of nine, and none crosses the end of the piece"
    assert "wan_dataset.json: a piece is chosen: a.mp4, b.mp4" in scan_report(result).splitlines()


def test_a_cache_encodes_what_was_chosen_and_nothing_else(bench):
    whole, *_ = bench.run()
    choose(bench.folder, b={"excluded": True})
    fewer, *_ = bench.run()
    assert counts(fewer) == (0, 2, 0, 4), "two clips, their captions and two prompts of every run"
    choose(bench.folder, c={"start_s": 0.5})
    moved, *_ = bench.run()
    assert counts(moved) == (1, 2, 0, 5), "one piece is new"
    assert len({report.fingerprint for report in (whole, fewer, moved)}) == 3
    (bench.folder / CHOICES_FILE).unlink()
    again, *_ = bench.run()
    assert (counts(again), again.fingerprint) == ((0, 3, 0, 5), whole.fingerprint)


def test_a_piece_that_is_too_short_is_named(bench):
    choose(bench.folder, a={"start_s": 1.5}, b={"start_s": 99, "length_s": 3})
    (one, other) = scanned(bench).rejected
    assert one.reason == "its chosen piece has 6 frames at 16 fps, fewer than num_frames 9"
    assert (one.too_short, one.is_piece, one.wants_caption) == (bench.folder / "a.mp4", True, None)
    assert other.reason == "its chosen piece has 0 frames at 16 fps, fewer than num_frames 9"


@pytest.mark.parametrize("crop", ["center", "random"])
def test_a_crop_is_where_it_was_moved(bench, make_clip, crop):
    wide = np.zeros((48, 96, 3), np.uint8)
    wide[:, 64:] = 200
    make_clip("clips/a.mp4", frames=[wide] * 20)
    choose(bench.folder, a={"crop": [1, 0.5]}, b={"crop": [0.5, 0.5]})
    result = scanned(bench, enable_bucket=False, width=32, crop=crop)
    right, middle, _ = (sample for sample in result.samples if sample.turn == 0)
    assert (right.cut.framing.offset, middle.cut.framing.offset) == ((64, 0), None)
    assert read_sample(bench.video, right, 16.0).mean() > 190
    (looked,) = frames_to_look_at(Dataset((result,)), [(right.path, None)], bench.video, 1, 24)
    assert not isinstance(looked, str)
    assert looked.shape == (1, 24, 16, 3)
    assert looked.mean() > 190, "a captioner sees another part"
    with Image.open(BytesIO(Thumbnails(bench.video).jpeg(right))) as thumbnail:
        assert np.asarray(thumbnail).mean() > 190, "the sheet shows another part"
    assert len([s for s in result.samples if s.name != "c.mp4"]) == 2, "a chosen crop is the only one"
    assert "wan_dataset.json: the crop is moved: a.mp4, b.mp4" in scan_report(result).splitlines()


def test_companions_follow_their_clip(bench, make_clip):
    """Control videos and masks are cut and cropped like it, and none is trained as a clip of its own without it."""
    for name in "abc":
        make_clip(f"clips/control/{name}.mp4", num_frames=32)
    make_clip("clips/a_mask.mp4", num_frames=30)
    choose(bench.folder, a={"excluded": True}, b={"start_s": 0.5, "crop": [0, 0]})
    result = scanned(bench, conditioning="vace", enable_bucket=False, width=32)
    b, _ = result.samples
    assert b.control is not None
    control = read_sample(bench.video, b, 16.0, b.control)
    assert abs(int(control[0].mean()) - 64) < 4
    assert [sample.name for sample in result.excluded] == ["a.mp4"]
    text = scanned(bench, recursive=True)
    assert [s.name for s in text.samples] == ["b.mp4", "c.mp4", "control/b.mp4", "control/c.mp4"]
    assert text.notes[0] == "excluded with their clips: a.mp4, a_mask.mp4"


def test_a_folder_of_excluded_clips_and_a_broken_file_are_refused_in_words(bench):
    choose(bench.folder, **{name: {"excluded": True} for name in "abc"})
    with pytest.raises(DatasetError, match=r"All 3 usable files of dataset folder 'clips' are excluded"):
        scanned(bench)
    (bench.folder / CHOICES_FILE).write_text("{")
    with pytest.raises(DatasetError, match=r"wan_dataset.json of folder 'clips' is not valid JSON"):
        scanned(bench)


def test_a_held_out_clip_may_be_excluded(bench):
    from wan_core.dataset import require_trained

    choose(bench.folder, a={"excluded": True})
    require_trained(Dataset((scanned(bench, held_out=("a", "b")),)), 1, 1)


def test_lists_follow_the_choices_of_the_folders_they_name(bench, tmp_path):
    listing = tmp_path / "list.jsonl"
    listing.write_text('{"path": "clips/a.mp4", "caption": "x"}\n{"path": "clips/b.mp4", "caption": "y"}\n')
    source = SourceFile(path=listing, allowed=[tmp_path])
    before, folder_before = source_fingerprint(source), fingerprint_of_folder(bench.folder)
    choose(bench.folder, a={"excluded": True})
    assert source_fingerprint(source) != before
    assert fingerprint_of_folder(bench.folder) != folder_before
    files = [MediaFile(path=bench.folder / "a.mp4", caption="x"), MediaFile(path=bench.folder / "b.mp4", caption="y")]
    part = SourcePart(name="list.jsonl", files=tuple(files))
    result = scan_files(DatasetConfig(**bench.settings), part, ScanContext(bench.video))
    assert [sample.name for sample in result.samples] == ["b.mp4"]
    (bench.folder / CHOICES_FILE).unlink()
    assert source_fingerprint(source) == before
    assert fingerprint_of_folder(bench.folder) == folder_before
