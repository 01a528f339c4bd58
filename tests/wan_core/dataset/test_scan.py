"""A folder becomes samples; what cannot be used is named with the reason, before any model is
loaded.
"""

from __future__ import annotations

import os

import numpy as np
import pytest
from PIL import Image

from wan_core.dataset import Dataset, DatasetConfig, ScanContext, Thumbnails, contact_sheet, scan_folder, scanned_files
from wan_core.dataset.bucket import Bucket
from wan_core.dataset.files import fingerprint_of_folder
from wan_core.dataset.report import scan_report
from wan_core.errors import ConfigError, DatasetError, Stopped
from wan_core.video import VideoProcess


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "clips"
    path.mkdir()
    return path


def config(**changes) -> DatasetConfig:
    values = {"folder": "input:clips", "width": 64, "height": 48, "num_frames": 9}
    return DatasetConfig(**{**values, **changes})


def test_clips_and_stills_become_samples_sorted_by_name(video, make_clip, folder):
    make_clip("clips/b.mp4", num_frames=24, fps=24)
    (folder / "b.txt").write_text("a clip")
    Image.new("RGB", (48, 64)).save(folder / "a.png")
    (folder / "a.txt").write_text("a still")
    (folder / "notes.json").write_text("{}")
    (folder / ".hidden.mp4").write_bytes(b"x")
    result = scan_folder(config(), folder, ScanContext(video))
    assert [(s.name, s.caption, s.bucket) for s in result.samples] == [
        ("a.png", "a still", Bucket(1, 64, 48)),
        ("b.mp4", "a clip", Bucket(9, 48, 64)),
    ]
    assert result.rejected == ()
    assert scan_report(result).splitlines() == [
        "input:clips: 1 clip, 1 still",
        "frames: 9 of each clip at 16 fps, from 24 (1) fps",
        "buckets: 48x64x1 (1), 64x48x9 (1)",
        "captions: 2 of 2 from .txt files",
        "caption length: about 3 tokens (median), 3 (longest), of at most 512 "
        "(estimated from the letters; Cache Latents counts)",
    ]


def test_short_and_broken_files_are_rejected_by_name_with_numbers(video, make_clip, folder):
    make_clip("clips/good.mp4", num_frames=20)
    make_clip("clips/short.mp4", num_frames=10, fps=24)
    (folder / "broken.mp4").write_bytes(b"not a video")
    (folder / "old.mxf").write_bytes(b"x")
    make_clip("clips/speck.mkv", codec="ffv1", width=8, height=8)
    result = scan_folder(config(trigger_word="ohwx"), folder, ScanContext(video))
    reasons = {r.name: r.reason for r in result.rejected}
    # 10 frames at 24 fps last 0.417 s: 7 frames at 16 fps
    assert reasons["short.mp4"] == ("has 7 frames at 16 fps (10 at 24 fps), fewer than num_frames 9")
    assert reasons["broken.mp4"].startswith("cannot be read as a video")
    assert reasons["old.mxf"].startswith(".mxf files are not read")
    assert reasons["speck.mkv"] == "is only 8x8 pixels"
    assert [s.name for s in result.samples] == ["good.mp4"]
    assert "not used: 4 files" in scan_report(result)
    assert f"  short.mp4: {reasons['short.mp4']}" in scan_report(result)


def test_when_nothing_is_left_the_reasons_and_the_fix_are_said(video, make_clip, folder):
    make_clip("clips/a.mp4", num_frames=7)
    make_clip("clips/b.mp4", num_frames=6)
    with pytest.raises(DatasetError) as caught:
        scan_folder(config(), folder, ScanContext(video))
    message = str(caught.value)
    assert "a.mp4: has 7 frames at 16 fps, fewer than num_frames 9" in message
    assert message.endswith("Set num_frames to 5, or add longer clips.")


def test_missing_captions_are_named_with_the_file_to_write(video, make_clip, folder):
    for name in ("a", "b", "c"):
        make_clip(f"clips/{name}.mp4")
    (folder / "a.txt").write_text("a car")
    (folder / "c.txt").write_text("  \n")
    found = scan_folder(config(), folder, ScanContext(video))
    assert [s.name for s in found.captionless] == ["b.mp4", "c.mp4"]
    remedies = (
        "Write b.txt with a description of the clip, set trigger_word, or set missing_captions in Wan Dataset "
        'Settings to "skip the file" or "empty caption"'
    )
    assert f"no caption, so nothing is trained yet: b.mp4, c.mp4. {remedies}" in scan_report(found).splitlines()
    with pytest.raises(DatasetError) as caught:
        Dataset((found,)).require_captions()
    assert str(caught.value) == f"2 of 3 files have no caption: b.mp4, c.mp4. {remedies}."
    result = scan_folder(config(trigger_word="ohwx"), folder, ScanContext(video))
    assert [s.caption for s in result.samples] == ["ohwx, a car", "ohwx", "ohwx"]
    assert scan_report(result).splitlines()[-4:-1] == [
        "captions: 1 of 3 from .txt files",
        "trigger word 'ohwx' put in front of 1 caption",
        "no caption, trigger word 'ohwx' used alone: b.mp4, c.mp4",
    ]


def test_captions_that_are_not_text_cost_their_clips_and_all_are_named(video, make_clip, folder):
    for name in "abc":
        make_clip(f"clips/{name}.mp4")
        (folder / f"{name}.txt").write_bytes(b"stra\xdfe" if name != "b" else b"a road")
    result = scan_folder(config(trigger_word="ohwx"), folder, ScanContext(video))
    assert [s.name for s in result.samples] == ["b.mp4"]
    assert [(r.name, r.reason) for r in result.rejected] == [
        (f"{n}.mp4", f"its caption {n}.txt is not saved as UTF-8 (byte 0xdf at offset 4). Save it again as UTF-8")
        for n in "ac"
    ]
    assert [r.wants_caption for r in result.rejected] == [folder / "a.mp4", folder / "c.mp4"]
    files = scanned_files(Dataset((result,)))
    assert [(file.name, file.caption_file.name) for file in files] == [(f"{n}.mp4", f"{n}.txt") for n in "bac"]


def test_a_folder_of_which_no_caption_can_be_read_is_shown_and_not_trained(video, make_clip, folder):
    for name in "ab":
        make_clip(f"clips/{name}.mp4")
        (folder / f"{name}.txt").write_bytes(b"stra\xdfe")
    (folder / "torn.mp4").write_bytes(b"no clip")
    result = scan_folder(config(), folder, ScanContext(video))
    assert [(s.name, s.caption, s.caption_from, s.listed) for s in result.samples] == [
        (f"{n}.mp4", "", "none", False) for n in "ab"
    ]
    assert [r.name for r in result.rejected] == ["torn.mp4"]
    why = "is not saved as UTF-8 (byte 0xdf at offset 4). Save it again as UTF-8"
    assert f"b.mp4: its caption b.txt {why}" in result.notes
    with pytest.raises(DatasetError, match="2 of 2 files have no caption"):
        Dataset((result,)).require_captions()
    for changes in ({"trigger_word": "ohwx"}, {"missing_captions": "empty caption"}):
        with pytest.raises(DatasetError, match=r"its caption a\.txt is not saved as UTF-8"):
            scan_folder(config(**changes), folder, ScanContext(video))


def test_empty_missing_and_false_folders_are_refused(video, folder):
    with pytest.raises(DatasetError, match="holds no clips or stills"):
        scan_folder(config(), folder, ScanContext(video))
    with pytest.raises(DatasetError, match="does not exist"):
        scan_folder(config(), folder / "nothing", ScanContext(video))
    (folder / "file").write_text("x")
    with pytest.raises(DatasetError, match="is a file"):
        scan_folder(config(), folder / "file", ScanContext(video))


@pytest.mark.skipif(os.name != "posix", reason="needs links and odd file names")
def test_loops_pipes_and_odd_names_do_not_stop_the_scan(video, make_clip, folder):
    make_clip("clips/good.mp4")
    (folder / "loop.mp4").symlink_to(folder / "loop.mp4")
    os.mkfifo(folder / "pipe.mp4")
    os.rename(make_clip("clips/plain.mp4"), os.fsencode(folder) + b"/odd\xff\x1b.mp4")
    (folder / "dir.mp4").mkdir()
    result = scan_folder(config(trigger_word="x"), folder, ScanContext(video))
    assert [s.name for s in result.samples] == ["good.mp4", "odd??.mp4"]
    assert [r.name for r in result.rejected] == ["loop.mp4", "pipe.mp4", "dir.mp4"]


@pytest.mark.skipif(os.name != "posix", reason="needs links")
def test_a_clip_that_links_outside_the_allowed_folders_is_rejected_by_name(video, make_clip, folder, tmp_path):
    make_clip("clips/good.mp4")
    make_clip("clips/sub/inside.mp4")
    make_clip("elsewhere/secret.mp4")
    (folder / "inside.mp4").symlink_to("sub/inside.mp4")
    (folder / "outside.mp4").symlink_to(tmp_path / "elsewhere" / "secret.mp4")
    (folder / "round.mp4").symlink_to("../elsewhere/../elsewhere/secret.mp4")
    result = scan_folder(config(trigger_word="x"), folder, ScanContext(video))
    assert [s.name for s in result.samples] == ["good.mp4", "inside.mp4"]
    assert {r.name: r.reason for r in result.rejected} == dict.fromkeys(
        ("outside.mp4", "round.mp4"),
        "is a link that leads outside the allowed folders; put the file itself into the dataset folder",
    )
    both = scan_folder(config(trigger_word="x"), folder, ScanContext(video, allowed=[tmp_path / "elsewhere"]))
    assert len(both.samples) == 4


@pytest.mark.skipif(os.name != "posix", reason="needs links")
def test_a_caption_that_links_outside_the_allowed_folders_is_refused_unread(video, make_clip, folder, tmp_path):
    make_clip("clips/a.mp4")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "secret.txt").write_text("canary")
    (folder / "a.txt").symlink_to(tmp_path / "elsewhere" / "secret.txt")
    with pytest.raises(
        DatasetError, match=r"its caption a\.txt is a link that leads outside.*put the file itself"
    ) as refusal:
        scan_folder(config(trigger_word="x"), folder, ScanContext(video))
    assert "canary" not in str(refusal.value)
    allowed = scan_folder(config(), folder, ScanContext(video, allowed=[tmp_path / "elsewhere"]))
    assert [s.caption for s in allowed.samples] == ["canary"]


def test_a_folder_that_is_itself_a_link_may_be_scanned(video, make_clip, folder, tmp_path):
    make_clip("clips/a.mp4")
    (folder / "a.txt").write_text("a car")
    try:
        (tmp_path / "link").symlink_to(folder)
    except OSError:
        pytest.skip("this account may not make links")
    assert [s.caption for s in scan_folder(config(), tmp_path / "link", ScanContext(video)).samples] == ["a car"]


def test_progress_is_told_and_stop_is_obeyed(video, make_clip, folder):
    for number in range(3):
        make_clip(f"clips/{number}.mp4")
    told: list[tuple[int, int, str]] = []
    scan_folder(config(trigger_word="x"), folder, ScanContext(video, progress=lambda *p: told.append(p)))
    assert told == [(1, 3, "0.mp4"), (2, 3, "1.mp4"), (3, 3, "2.mp4")]
    told.clear()
    with pytest.raises(Stopped):
        scan_folder(
            config(trigger_word="x"),
            folder,
            ScanContext(video, progress=lambda *p: told.append(p), should_stop=lambda: len(told) == 2),
        )
    assert len(told) == 2


def test_a_scan_asks_the_reader_once_per_clip(video, make_clip, folder, monkeypatch):
    data = make_clip("source.mp4", num_frames=40).read_bytes()
    for number in range(50):
        (folder / f"{number:03}.mp4").write_bytes(data)
    asked = []
    ask = VideoProcess._ask
    monkeypatch.setattr(
        VideoProcess, "_ask", lambda self, do, *rest, **more: asked.append(do) or ask(self, do, *rest, **more)
    )
    assert len(scan_folder(config(trigger_word="x"), folder, ScanContext(video)).samples) == 50
    assert asked == ["probe"] * 50


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_frames": 30}, "num_frames is 30; Wan needs 4n.1. Set num_frames to 29 or 33"),
        ({"num_frames": 0}, "Wan needs 4n"),
        ({"num_frames": 100_001}, "the most is 1001"),
        ({"width": 830}, "width is 830; the model needs multiples of 16. Set width to 816 or 832"),
        ({"width": 1264, "size_multiple": 32}, "multiples of 32. Set width to 1248 or 1280"),
        ({"height": 100_000}, "height is 100000. Set it between 16 and 4096"),
        ({"fps": 0.0}, "fps is 0"),
        ({"fps": float("nan")}, "fps nan is not a finite number"),
        ({"num_repeats": 0}, "num_repeats is 0"),
        ({"caption_extension": "../x"}, "caption_extension"),
        ({"caption_extension": "txt"}, "caption_extension"),
    ],
)
def test_impossible_settings_are_refused_with_the_fix(changes, message):
    with pytest.raises(ConfigError, match=message):
        DatasetConfig(**changes)


def test_settings_round_trip_and_unknown_ones_are_named():
    settings = config(trigger_word="ohwx", size_multiple=16)
    assert DatasetConfig.from_dict(settings.to_dict()) == settings
    with pytest.raises(ConfigError, match=r'"num_frame".*"num_frames"'):
        DatasetConfig.from_dict({"num_frame": 9})


def test_the_folder_fingerprint_sees_every_edit(folder):
    path = folder / "a.txt"
    path.write_text("one")
    seen = {fingerprint_of_folder(folder)}
    assert {fingerprint_of_folder(folder)} == seen
    path.write_text("two!")
    seen.add(fingerprint_of_folder(folder))
    (folder / "b.txt").write_text("x")
    seen.add(fingerprint_of_folder(folder))
    path.rename(folder / "c.txt")
    seen.add(fingerprint_of_folder(folder))
    assert len(seen) == 4


def test_the_contact_sheet_shows_every_file(video, make_clip, folder):
    for number in range(7):
        make_clip(f"clips/{number}.mp4", frames=[np.full((48, 64, 3), 200, np.uint8)] * 9)
    result = scan_folder(config(trigger_word="x"), folder, ScanContext(video))
    (folder / "6.mp4").write_bytes(b"broken since")
    sheet = contact_sheet(Dataset((result,)), Thumbnails(video))
    assert sheet.dtype == np.uint8
    assert sheet.shape == (2 * 136, 6 * 160, 3)
    assert sheet[60, 80].min() > 190  # first cell: the clip
    assert sheet[136 + 60, 80].tolist() == [90, 90, 90]  # seventh: cannot be read
    assert sheet[136 + 60, 240].tolist() == [24, 24, 24]  # no eighth


def test_datasets_that_do_not_go_together_are_refused(video, make_clip, folder):
    make_clip("clips/a.mp4")
    one = scan_folder(config(trigger_word="x"), folder, ScanContext(video))
    two = scan_folder(config(trigger_word="x", fps=24.0, num_frames=5), folder, ScanContext(video))
    assert repr(Dataset((one, one))) == "Dataset(2 clips, 0 stills)"
    with pytest.raises(DatasetError, match="differ in fps"):
        Dataset((one, two))


def test_playlists_and_folders_called_like_clips_are_named(video, make_clip, folder):
    make_clip("clips/a.mp4")
    make_clip("clips/take.mp4/b.mp4")
    (folder / "list.m3u8").write_text("#EXTM3U\na.mp4\n")
    result = scan_folder(config(trigger_word="x"), folder, ScanContext(video))
    assert [s.name for s in result.samples] == ["a.mp4"]
    assert {r.name: r.reason for r in result.rejected} == {
        "list.m3u8": ".m3u8 files are not read; convert it to mp4 or png",
        "take.mp4": "is a folder; turn on recursive in Wan Dataset Settings to read its files",
    }
    whole = scan_folder(config(trigger_word="x", recursive=True), folder, ScanContext(video))
    assert [s.name for s in whole.samples] == ["a.mp4", "take.mp4/b.mp4"]


def test_a_container_format_that_is_not_read_is_named_as_that(video, make_clip, folder):
    make_clip("clips/a.y4m", codec="wrapped_avframe").rename(folder / "a.mp4")
    with pytest.raises(DatasetError, match=r"a\.mp4: is of a container format that is not read \(mp4, mov, mkv"):
        scan_folder(config(trigger_word="x"), folder, ScanContext(video))
