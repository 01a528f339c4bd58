"""What the dataset node says before the GPU works: epochs, speed, copies, size and time."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.shapeworld.draw import render
from tests.shapeworld.scenes import all_words, captioned_scene
from tests.support.bench import Bench
from wan_core.cache import LatentCache
from wan_core.cache.known_entries import KnownEntries
from wan_core.dataset import (
    Dataset,
    DatasetConfig,
    Sample,
    ScanContext,
    ScanResult,
    dataset_review,
    near_copies,
    scan_folder,
)
from wan_core.dataset.bucket import Bucket
from wan_core.dataset.estimates import cache_size, epoch_lines, epoch_rows, is_averaged, speed_lines
from wan_core.dataset.near_copies import byte_twins, near_twins
from wan_core.dataset.sample import Cut
from wan_core.files import digest_file
from wan_core.model import WAN21_LATENTS, condition_named
from wan_core.video import LOOK_SIZE, ClipInfo, look_of

WIDE = Bucket(33, 480, 832)


def sample(name: str, bucket: Bucket = WIDE, fps: float = 16.0, **changes) -> Sample:
    info = ClipInfo(kind="clip", width=832, height=480, fps=fps, duration_s=4.0, look=changes.pop("look", ""))
    if bucket.num_frames == 1:
        info = replace(info, kind="still", fps=0.0, duration_s=0.0)
    known = {"path": Path(name), "name": name, "caption": name, "caption_from": "file", "mark": (5, 0, 0)}
    return Sample(info=info, bucket=bucket, **known | changes)


# ---- epochs and speed ----------------------------------------------------------------------------


def test_an_epoch_is_counted_by_bucket_with_repeats_windows_and_turns():
    small = Bucket(33, 832, 480)
    samples = [
        *(sample("a.mp4", cut=Cut(start_s=2.0 * k)) for k in range(3)),  # three windows of one clip
        sample("b.mp4", repeats=4),
        *(sample("c.mp4", small, turn=k, turns=2) for k in range(2)),  # one of two in every epoch
        sample("d.png", Bucket(1, 480, 832)),
    ]
    assert epoch_lines(epoch_rows(samples), averaged=is_averaged(samples)) == [
        "an epoch, in batches of 1 / 2 / 4:",
        "  832x480x33: 2 clips, 4 samples, 7 / 4 / 2 batches",
        "  480x832x33: 1 clip, 2 samples, 1 / 1 / 1 batches",
        "  832x480x1: 1 still, 1 / 1 / 1 batches",
        "  all: 3 clips + 1 still, 7 samples, 9 / 6 / 4 batches",
    ]


def test_weights_scale_an_epoch_which_is_then_a_mean():
    samples = [*(sample(f"{k}.mp4", weight=0.5) for k in range(5)), sample("x.mp4", repeats=2, weight=1.5)]
    assert epoch_lines(epoch_rows(samples), averaged=is_averaged(samples)) == [
        "an epoch, on average, in batches of 1 / 2 / 4:",
        "  832x480x33: 6 clips, 6 / 3 / 2 batches",
    ]


def test_held_out_files_are_named_and_no_part_of_an_epoch(tmp_path, make_clip, video):
    for name, count in (("a", 12), ("b", 13), ("c", 14)):
        make_clip(f"clips/{name}.mp4", num_frames=count)
    shape = {"width": 64, "height": 48, "num_frames": 9, "trigger_word": "x"}
    config = DatasetConfig(**shape, held_out=("b",), horizontal_flip="both")
    parts = (
        scan_folder(config, tmp_path / "clips", ScanContext(video)),
        scan_folder(DatasetConfig(**shape), tmp_path / "clips", ScanContext(video)),
    )
    lines = (
        dataset_review(Dataset(parts), video=video, digest_of=digest_file, space=WAN21_LATENTS).report().splitlines()
    )
    assert lines[1] == "  64x48x9: 2 clips, 6 samples, 6 / 3 / 2 batches"
    assert lines[2] == "held out for evaluation: 1 file: b.mp4"


def test_rates_that_differ_by_a_fifth_are_told_with_what_happens_to_the_frames():
    near = [sample("a", fps=16), sample("b", fps=19), sample("c", fps=14)]
    assert speed_lines(near, 16.0) == []
    single = replace(sample("g", fps=30), bucket=Bucket(1, 480, 832), cut=Cut(fps=30))
    assert speed_lines([single], 16.0) == [], "one frame of a clip does not move"
    lines = speed_lines([*near, sample("d", fps=32), sample("e", fps=64), sample("f", fps=8)], 16.0)
    assert lines[0] == (
        "faster than the model's 16 fps: 32 (1), 64 (1) fps. They play at the same speed; 25% to 50% of their frames "
        "are used, the others dropped."
    )
    assert "frames are shown up to 2.0 times, and the model learns to stutter" in lines[1]
    assert "its stated frame rate is wrong" in lines[2]


def test_a_fast_clip_keeps_its_speed_and_loses_the_frames_the_report_says(video, make_clip, tmp_path):
    path = make_clip("clips/a.mkv", num_frames=64, fps=32, codec="ffv1")
    frames = video.read(path, fps=16, num_frames=9, width=64, height=48)
    levels = frames[:, 24, 32, 1].astype(int)
    assert np.abs(levels - 16 * np.arange(9)).max() <= 1  # every second grey level, at the same times
    info = video.probe(path)
    assert "50% of their" in speed_lines([replace(sample("a"), info=info)], 16.0)[0]


# ---- copies --------------------------------------------------------------------------------------


def test_files_with_the_same_bytes_are_named_and_only_files_of_one_size_are_hashed(tmp_path):
    for name, data in (("a", b"12345"), ("b", b"12345"), ("c", b"54321"), ("d", b"123456"), ("e", b"12345")):
        (tmp_path / name).write_bytes(data)
    samples = [sample(name, path=tmp_path / name, mark=((tmp_path / name).stat().st_size, 0, 0)) for name in "abcde"]
    hashed: list[str] = []

    def digest(path: Path) -> str:
        hashed.append(path.name)
        return digest_file(path)

    assert [[s.name for s in group] for group in byte_twins(samples, digest)] == [["a", "b", "e"]]
    assert hashed == ["a", "b", "c", "e"]


class Shown:
    """Stands for the video child where thousands of clips would take minutes to write: frames by file name."""

    def __init__(self, clips: dict[str, np.ndarray]) -> None:
        self.clips, self.reads = clips, 0

    def read(self, path: Path, *, num_frames: int, start_s: float, width: int, height: int, fps: float) -> np.ndarray:
        self.reads += 1
        frame = self.clips[path.name][round(start_s * fps)]
        return np.asarray(Image.fromarray(frame).resize((width, height), Image.Resampling.LANCZOS))[None]

    def samples(self) -> list[Sample]:
        return [sample(name, look=look(clip[0])) for name, clip in self.clips.items()]


def look(frame: np.ndarray) -> str:
    return look_of(np.asarray(Image.fromarray(frame).convert("L").resize((LOOK_SIZE,) * 2, Image.Resampling.BOX)))


def world(count: int) -> dict[str, np.ndarray]:
    """Different clips of 68 frames, hard to tell apart: one shape on its path over a dark ground, 96 captions."""
    words, clips = all_words(), {}
    for number in range(count):
        frames = render(captioned_scene(words[number * 7 % 96], number, 17)).round().byte().numpy()
        clips[f"{number}.mp4"] = np.repeat(frames, 4, axis=0)
    return clips


def test_two_hundred_different_clips_of_one_world_are_no_copies():
    shown = Shown(world(200))
    found = near_twins(shown.samples(), shown, allowed_s=60)  # type: ignore[arg-type]
    assert found.groups == ()
    assert found.left_out == 0
    assert shown.reads > 100  # the first frames of many do look alike, and only the pictures tell them apart


COPIES = {
    "written again": lambda frame: again(frame, quality=40),
    "scaled": lambda frame: again(resized(frame, 48), quality=80),
    "cropped by 3 %": lambda frame: again(resized(frame[2:-2, 2:-2], 64), quality=90),
}


def again(frame: np.ndarray, quality: int) -> np.ndarray:
    buffer = BytesIO()
    Image.fromarray(frame).save(buffer, "JPEG", quality=quality)
    return np.asarray(Image.open(buffer).convert("RGB"))


@pytest.mark.parametrize(
    "how", ["cropped by 3 %", *(pytest.param(how, marks=pytest.mark.soak) for how in ("written again", "scaled"))]
)
def test_copies_among_different_clips_are_found_and_nothing_else(how):
    clips = world(60)
    for name, clip in list(clips.items()):
        clips[f"{name}_copy"] = np.repeat(np.stack([COPIES[how](clip[k]) for k in range(0, 36, 4)]), 4, axis=0)
    shown = Shown(clips)
    found = near_twins(shown.samples(), shown, allowed_s=60)  # type: ignore[arg-type]
    assert all({s.name for s in group} == {group[0].name, f"{group[0].name}_copy"} for group in found.groups)
    assert len(found.groups) >= 59  # of 60; with Pillow 13 all are found


def test_copies_are_found_when_written_again_scaled_or_cropped(video, make_clip):
    """Through files: H.264 at other qualities and sizes, in other containers."""
    words = all_words()
    for number in range(6):
        frames = render(captioned_scene(words[number * 7], number, 17)).round().byte().numpy()
        big = [np.asarray(Image.fromarray(f).resize((192, 192), Image.Resampling.BICUBIC)) for f in frames]
        name = f"clips/{number}"
        make_clip(f"{name}.mp4", frames=big)
        if number == 0:
            make_clip(f"{name}_again.mkv", frames=big, options={"crf": "35"})
        if number == 1:
            make_clip(f"{name}_small.mp4", frames=[resized(f, 96) for f in big])
        if number == 2:
            make_clip(f"{name}_cropped.mp4", frames=[resized(f[5:-5, 5:-5], 128) for f in big])
    result = scan_folder(
        DatasetConfig(width=64, height=64, num_frames=9, trigger_word="x"),
        make_clip("clips/z.mp4").parent,
        ScanContext(video),
    )
    found = near_twins(result.samples, video, allowed_s=60)
    assert sorted(sorted(s.name for s in group) for group in found.groups) == [
        ["0.mp4", "0_again.mkv"],
        ["1.mp4", "1_small.mp4"],
        ["2.mp4", "2_cropped.mp4"],
    ]


def resized(frame: np.ndarray, side: int) -> np.ndarray:
    return np.asarray(Image.fromarray(frame).resize((side, side), Image.Resampling.LANCZOS))


def test_stills_are_compared_too(video, tmp_path):
    folder = tmp_path / "stills"
    folder.mkdir()
    y, x = np.mgrid[0:120, 0:160]
    for number in range(3):
        values = np.sin((number + 2) * x / 30) * np.cos((5 - number) * y / 25)
        Image.fromarray((127 + 120 * values).astype(np.uint8)).convert("RGB").save(folder / f"{number}.png")
    with Image.open(folder / "1.png") as picture:
        picture.resize((120, 90)).save(folder / "copy.jpg", quality=60)
    result = scan_folder(DatasetConfig(width=64, height=48, trigger_word="x"), folder, ScanContext(video))
    found = near_twins(result.samples, video, allowed_s=60)
    assert [sorted(s.name for s in group) for group in found.groups] == [["1.png", "copy.jpg"]]


def test_a_picture_of_one_colour_has_no_look():
    assert look_of(np.full((32, 32), 90)) == ""
    noise = np.random.default_rng(0).normal(90, 1, (32, 32))
    assert look_of(noise) == ""
    edge = np.where(np.arange(32) < 16, 0, 200)[None].repeat(32, 0)
    assert len(look_of(edge)) == 16
    assert look_of(edge) == look_of(edge / 2 + 50)


def test_when_the_time_is_over_the_report_says_what_was_not_compared():
    shown = Shown(world(20))
    samples = [replace(s, info=replace(s.info, look="0" * 16)) for s in shown.samples()]
    found = near_twins(samples, shown, allowed_s=-1)  # type: ignore[arg-type]
    assert (found.groups, found.left_out, shown.reads) == ((), 20, 0)


@pytest.mark.lasts(1)
def test_ten_thousand_files_are_reviewed_in_seconds():
    rng = np.random.default_rng(1)
    samples = [
        sample(f"{n}.mp4", look=f"{int(bits):016x}", mark=(100 + n, 0, 0))
        for n, bits in enumerate(rng.integers(0, 1 << 63, 10_000, dtype=np.uint64))
    ]
    shown = Shown({})
    shown.read = lambda *_, **__: np.zeros((1, 64, 64, 3), np.uint8)  # type: ignore[method-assign]
    start = time.monotonic()
    text = review(samples, shown)
    assert "10,000 clips, 10,000 / 5,000 / 2,500 batches" in text
    assert time.monotonic() - start < 20


@pytest.mark.lasts(1)
def test_thousands_that_begin_alike_cost_no_more_than_the_time_allowed():
    """A title frame before every clip: eight million pairs."""
    shown = Shown({})
    shown.read = lambda *_, **__: np.zeros((1, 64, 64, 3), np.uint8)  # type: ignore[method-assign]
    samples = [sample(f"{n}.mp4", look="0123456789abcdef") for n in range(4_000)]
    start = time.monotonic()
    found = near_twins(samples, shown, allowed_s=0.3)  # type: ignore[arg-type]
    assert time.monotonic() - start < 10
    assert found.left_out > 3_000


def test_copies_of_one_clip_are_compared_once_each_and_not_every_pair(monkeypatch):
    clip = world(1)["0.mp4"]
    shown = Shown({f"{number}.mp4": clip for number in range(60)})
    compared: list[int] = []
    alike = near_copies._Pictures.alike
    monkeypatch.setattr(near_copies._Pictures, "alike", lambda *pair: compared.append(1) or alike(*pair))
    found = near_twins(shown.samples(), shown, allowed_s=60)  # type: ignore[arg-type]
    assert [len(group) for group in found.groups] == [60]
    assert len(compared) == 59  # of 1,770 pairs


def review(samples: Sequence[Sample], video: object, **options) -> str:
    dataset = Dataset((ScanResult(config=DatasetConfig(), samples=tuple(samples)),))
    return dataset_review(dataset, video=video, digest_of=digest_file, space=WAN21_LATENTS, **options).report()  # type: ignore[arg-type]


# ---- size and time -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "conditioning",
    [
        *("first_last_vision", "vace", "control_mask"),
        *(pytest.param(one, marks=pytest.mark.soak) for one in ("none", "first", "control_vision")),
    ],
)
def test_the_size_told_is_the_size_written(tmp_path, make_clip, video, conditioning):
    for name, count in (("a", 12), ("b", 16)):
        make_clip(f"clips/{name}.mp4", num_frames=count)
        make_clip(f"clips/control/{name}.mp4", num_frames=count)
        Image.new("L", (64, 48), 10 * count).save(tmp_path / "clips" / f"{name}_mask.png")
    bench = Bench(tmp_path / "clips", tmp_path / "cache", video, trigger_word="x", mask_use="loss")
    bench.run(conditioning=conditioning)
    result = scan_folder(DatasetConfig(**bench.settings, conditioning=conditioning), bench.folder, ScanContext(video))
    told = cache_size(result.samples, WAN21_LATENTS, condition_named(conditioning), loss_masks=True)
    for folder, size in (("latents", told.latents), ("conditions", told.conditions), ("masks", told.masks)):
        files = list(bench.cache_root.glob(f"{folder}/*/*.safetensors"))
        written = sum(path.stat().st_size for path in files)
        assert 0 <= written - size <= 500 * len(files), folder
    assert told.megapixels == pytest.approx(2 * 9 * 64 * 48 / 1e6 * (1 + condition_named(conditioning).vae_passes))


def test_the_time_is_that_of_the_last_encoding_or_not_told(tmp_path):
    speed = KnownEntries(tmp_path)
    assert speed.seconds_per_megapixel("wan2.1") is None
    speed.note_pace("wan2.1", seconds=0.1, megapixels=0.01)  # too little to say anything
    assert speed.seconds_per_megapixel("wan2.1") is None
    speed.note_pace("wan2.1", seconds=30.0, megapixels=15.0)
    assert speed.seconds_per_megapixel("wan2.1") == 2.0
    assert speed.seconds_per_megapixel("wan2.2") is None
    shown = Shown({})
    assert "encoding" not in review([sample("a")], shown)
    # 33 frames of 832x480 are 13.2 megapixels
    assert "encoding everything: about 26 s at the speed of the last" in review(
        [sample("a")], shown, seconds_per_megapixel=2.0
    )


def test_encoding_remembers_its_speed(tmp_path, make_clip, video):
    for number in range(3):
        make_clip(f"clips/{number}.mp4", num_frames=20 + number, width=320, height=240)
    bench = Bench(tmp_path / "clips", tmp_path / "cache", video, trigger_word="x")
    bench.settings |= {"width": 320, "height": 240, "num_frames": 9}
    start = time.monotonic()
    bench.run()
    found = KnownEntries(tmp_path / "cache").seconds_per_megapixel("wan2.1")
    assert found is not None
    assert 0 < found * 3 * 9 * 320 * 240 / 1e6 < time.monotonic() - start


def test_the_whole_review_reads_as_lines_and_deletes_nothing(tmp_path, make_clip, video):
    folder = make_clip("clips/a.mp4", num_frames=40, fps=32).parent
    (folder / "b.mp4").write_bytes((folder / "a.mp4").read_bytes())
    before = sorted(path.name for path in folder.iterdir())
    result = scan_folder(DatasetConfig(width=64, height=48, num_frames=9, trigger_word="x"), folder, ScanContext(video))
    cache = LatentCache(tmp_path / "cache")
    text = dataset_review(Dataset((result,)), video=video, digest_of=cache.files.digest, space=WAN21_LATENTS).report()
    assert text.splitlines() == [
        "an epoch, in batches of 1 / 2 / 4:",
        "  64x48x9: 2 clips, 2 / 1 / 1 batches",
        "faster than the model's 16 fps: 32 (2) fps. They play at the same speed; 50% of their frames are used, the "
        "others dropped.",
        "If one of them plays too slow or too fast in a player, its stated frame rate is wrong: write it again.",
        "the same bytes (trained once for each name): 1 group",
        "  a.mp4, b.mp4",
        "cache size, if nothing is cached yet: 9 KiB latents; texts (1 caption) 8 KiB for every token",
    ]
    assert sorted(path.name for path in folder.iterdir()) == before


@pytest.mark.lasts(2)
def test_the_command_line_tells_the_same(wan_core_command, make_clip):
    folder = make_clip("clips/a.mp4", num_frames=12).parent
    sized = ("--num-frames", "9", "--width", "64", "--height", "48")
    done = wan_core_command("scan", str(folder), "--trigger-word", "x", *sized)
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout)
    assert [one["size"] for one in told["samples"]] == [{"width": 64, "height": 48, "frames": 9}]
    report = told["report"]
    assert "clips: 1 clip, 0 stills" in report
    assert "  64x48x9: 1 clip, 1 / 1 / 1 batches" in report
