"""From a clip to its samples: real files whose k-th frame has the level 8 * k, and windows counted by hand."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from wan_core.cache.keys import transform_of
from wan_core.dataset import (
    Dataset,
    DatasetConfig,
    ScanContext,
    dataset_facts,
    dataset_review,
    read_sample,
    scan_folder,
)
from wan_core.dataset.report import scan_report
from wan_core.errors import ConfigError, DatasetError
from wan_core.files import digest_file
from wan_core.model import WAN21_LATENTS
from wan_core.video.scenes import hue_saturation_brightness


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "clips").mkdir()
    return tmp_path / "clips"


def scan(folder, video, **changes):
    values = {"folder": "clips", "width": 64, "height": 48, "num_frames": 9, "trigger_word": "x"}
    return scan_folder(DatasetConfig(**{**values, **changes}), folder, ScanContext(video))


def levels(frames: np.ndarray) -> list[int]:
    return [round(int(frame[24, 32, 1]) / 8) for frame in frames]


def shown(video, result) -> list[list[int]]:
    """The first and last source frame of every sample."""
    return [[levels(read_sample(video, sample, 16.0))[end] for end in (0, -1)] for sample in result.samples]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [[0, 8]]),
        ({"frame_extraction": "chunk"}, [[0, 8], [9, 17], [18, 26]]),
        ({"frame_extraction": "slide", "frame_stride": 7}, [[0, 8], [7, 15], [14, 22], [21, 29]]),
        ({"frame_extraction": "uniform", "frame_sample": 3}, [[0, 8], [10, 18], [21, 29]]),
        ({"frame_extraction": "full", "num_frames": 81}, [[0, 28]]),
        ({"frame_buckets": (5, 17)}, [[0, 16]]),
        ({"frame_extraction": "chunk", "frame_buckets": (5, 17)}, [[0, 16], [17, 21], [22, 26]]),
    ],
)
def test_each_mode_reads_the_frames_it_names(video, make_clip, folder, changes, expected):
    make_clip("clips/a.mp4", num_frames=30)
    assert shown(video, scan(folder, video, **changes)) == expected


def test_windows_of_a_clip_at_another_rate_go_by_time(video, make_clip, folder):
    make_clip("clips/a.mp4", num_frames=30, fps=24)  # 20 frames at 16 fps
    result = scan(folder, video, frame_extraction="chunk")
    assert [s.cut.start_s for s in result.samples] == [0, 9 / 16]
    # frame k of the second window is on screen at (9 + k) / 16 s: source frame floor(1.5 * (9 + k))
    assert levels(read_sample(video, result.samples[1], 16.0)) == [(9 + k) * 3 // 2 for k in range(9)]


def test_random_windows_take_turns_and_follow_the_content(video, make_clip, folder):
    path = make_clip("clips/a.mp4", num_frames=31)
    result = scan(folder, video, frame_extraction="random", variants=3)
    assert [(s.turn, s.turns) for s in result.samples] == [(0, 3), (1, 3), (2, 3)]
    starts = [s.cut.start_s for s in result.samples]
    assert len(set(starts)) == 3
    first, last = shown(video, result)[0]
    assert (first / 16, last - first) == (starts[0], 8)
    path.rename(folder / "renamed.mp4")
    renamed = scan(folder, video, frame_extraction="random", variants=3)
    assert [s.cut for s in renamed.samples] == [s.cut for s in result.samples]
    (folder / "renamed.mp4").unlink()
    make_clip("clips/a.mp4", num_frames=31, options={"crf": "30"})
    other = scan(folder, video, frame_extraction="random", variants=3)
    assert [s.cut for s in other.samples] != [s.cut for s in result.samples]


def test_random_crops_of_a_window_take_turns_and_each_window_has_its_own(video, make_clip, folder):
    make_clip("clips/a.mp4", num_frames=18, width=96)
    result = scan(
        folder, video, frame_extraction="chunk", crop="random", variants=2, enable_bucket=False, horizontal_flip="both"
    )
    # two windows, each plain and mirrored, each in two crops that take turns
    assert [(s.cut.start_s, s.cut.framing.flip, s.turn, s.turns) for s in result.samples] == [
        (start_s, flip, turn, 2) for start_s in (0, 9 / 16) for flip in (False, True) for turn in (0, 1)
    ]
    offsets = [s.cut.framing.offset for s in result.samples]
    assert offsets[0:2] == offsets[2:4]
    assert offsets[0:2] != offsets[4:6]


def test_flips_by_turns_show_both_sides_of_a_variant_in_neighbouring_epochs(video, make_clip, folder):
    make_clip("clips/a.mp4", num_frames=20)
    Image.new("RGB", (64, 48)).save(folder / "b.png")
    result = scan(folder, video, frame_extraction="random", variants=2, horizontal_flip="turns")
    clip, still = result.samples[:4], result.samples[4:]
    assert [(s.turn, s.turns, s.cut.framing.flip) for s in clip] == [
        (0, 4, False),
        (1, 4, True),
        (2, 4, False),
        (3, 4, True),
    ]
    assert clip[0].cut.start_s == clip[1].cut.start_s != clip[2].cut.start_s
    assert [(s.turn, s.turns, s.cut.framing.flip) for s in still] == [(0, 2, False), (1, 2, True)]


def test_a_flip_is_the_mirror_image(video, make_clip, folder):
    picture = np.zeros((48, 64, 3), np.uint8)
    picture[:, :20] = 240
    make_clip("clips/a.mp4", frames=[picture] * 9)
    Image.fromarray(picture).save(folder / "b.png")
    for plain, mirror in zip(*[iter(scan(folder, video, horizontal_flip="both").samples)] * 2, strict=True):
        one, other = (read_sample(video, sample, 16.0) for sample in (plain, mirror))
        np.testing.assert_array_equal(one[:, :, ::-1], other)
        assert one[0, 24, 5].min() > 200 > one[0, 24, 60].max()


def test_a_default_sample_leaves_the_name_of_its_cache_entry_alone(video, make_clip, folder):
    """Pinned: what an entry is named by where nothing was chosen."""
    make_clip("clips/a.mp4", num_frames=9)
    plain = {"kind": "clip", "reader": 2, "width": 64, "height": 48, "fit": "cover"}
    plain |= {"num_frames": 9, "fps": 16.0, "start_s": 0.0}
    assert transform_of(scan(folder, video).samples[0], 16.0) == plain
    flipped = scan(folder, video, horizontal_flip="both").samples
    assert [transform_of(s, 16.0) for s in flipped] == [plain, {**plain, "flip": True}]
    native = scan(folder, video, crop="none").samples[0]
    assert transform_of(native, 16.0) == {**plain, "fit": "native"}


def test_no_two_cuts_of_a_clip_share_a_cache_entry(video, make_clip, folder):
    make_clip("clips/a.mp4", num_frames=31, width=128, height=80)
    seen: set[str] = set()
    count = 0
    for changes in (
        {"frame_extraction": "chunk"},
        {"frame_extraction": "chunk", "crop": "none"},
        # In a size of its own: a random window and place may be the very ones that another setting takes.
        {
            "frame_extraction": "random",
            "crop": "random",
            "enable_bucket": False,
            "horizontal_flip": "both",
            "width": 48,
        },
        {"num_frames": 13},
    ):
        transforms = [transform_of(s, 16.0) for s in scan(folder, video, **changes).samples]
        count += len(transforms)
        seen |= {repr(sorted(transform.items())) for transform in transforms}
    assert len(seen) == count == 3 + 3 + 8 + 1


def test_the_report_counts_windows_and_what_is_left_over(video, make_clip, folder):
    make_clip("clips/a.mp4", num_frames=30)
    make_clip("clips/b.mp4", num_frames=12)
    make_clip("clips/c.mp4", num_frames=7)
    result = scan(
        folder, video, frame_extraction="chunk", num_frames=11, frame_rounding="down", horizontal_flip="turns"
    )
    # a: 27 of 30 frames, b: 9 of 12; six frames at 16 fps are 0.375 s
    assert scan_report(result).splitlines() == [
        "clips: 2 clips, 0 stills",
        "frames: 9 (11 rounded down) of each clip at 16 fps, from 16 (2) fps",
        "windows: chunk, 4 of 2 clips (1 to 3 of each)",
        "mirrored: every second epoch",
        "turns: 8 samples cached, 4 seen in one epoch; up to 2 take turns",
        "buckets: 64x48x9 (8)",
        "captions: 0 of 2 from .txt files",
        "no caption, trigger word 'x' used alone: a.mp4, b.mp4",
        "caption length: about 2 tokens (median), 2 (longest), of at most 512 (estimated from the letters; Cache "
        "Latents "
        "counts)",
        "not used: 1 file",
        "  c.mp4: has 7 frames at 16 fps, fewer than num_frames 9",
    ]


def test_the_report_says_what_crops_do(video, make_clip, folder):
    make_clip("clips/a.mp4", num_frames=9, width=160, height=120)
    make_clip("clips/b.mp4", num_frames=9, width=40, height=40)
    own = scan_report(scan(folder, video, crop="none"))
    assert "crop: none, each at its own size; 1 file scaled down to 64x48 in area" in own
    assert "buckets: 64x48x9 (1), 32x32x9 (1)" in own
    moved = scan_report(scan(folder, video, crop="random", enable_bucket=False))
    assert "crop: random; 1 file of the bucket's own aspect ratio: nothing to move" in moved


def test_missing_captions_are_counted_by_file_not_by_window(video, make_clip, folder):
    make_clip("clips/a.mp4", num_frames=30)
    found = scan(folder, video, frame_extraction="chunk", trigger_word="")
    with pytest.raises(DatasetError, match=r"^1 of 1 files have no caption: a\.mp4\. Write a\.txt"):
        Dataset((found,)).require_captions()


def test_too_short_for_every_bucket_is_said_with_the_shortest(video, make_clip, folder):
    make_clip("clips/a.mp4", num_frames=7)
    with pytest.raises(DatasetError) as refusal:
        scan(folder, video, frame_buckets=(9, 17))
    assert "a.mp4: has 7 frames at 16 fps, fewer than 9, the shortest of frame_buckets" in str(refusal.value)
    assert str(refusal.value).endswith("Set frame_buckets to 5, or add longer clips.")


def test_a_source_below_the_grid_is_named_when_it_may_not_be_enlarged(video, make_clip, folder):
    make_clip("clips/a.mp4", num_frames=9)
    make_clip("clips/b.mp4", num_frames=9, width=32, height=24)
    result = scan(folder, video, crop="none", height=64, size_multiple=32)
    assert [(r.name, r.reason) for r in result.rejected] == [
        ("b.mp4", "is only 32x24 pixels, and crop is none: each side needs 32")
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_frames": 75}, "num_frames is 75; Wan needs 4n.1. Set num_frames to 73 or 77"),
        ({"frame_buckets": (17, 30)}, "frame_buckets is 30; Wan needs 4n.1. Set frame_buckets to 29 or 33"),
        ({"num_frames": 0, "frame_rounding": "down"}, "num_frames is 0"),
        ({"frame_buckets": (17,), "frame_extraction": "full"}, "exclude each other"),
        ({"frame_extraction": "tail"}, 'frame_extraction "tail" is not a choice. Known: head, chunk'),
        ({"frame_rounding": "up"}, "frame_rounding"),
        ({"crop": "left"}, 'crop "left"'),
        ({"horizontal_flip": "yes"}, 'horizontal_flip "yes"'),
        ({"frame_stride": 0}, "frame_stride is 0"),
        ({"frame_sample": 0}, "frame_sample is 0"),
        ({"variants": 0}, "variants is 0"),
        ({"scene_threshold": float("nan")}, "scene_threshold nan is not a finite number"),
    ],
)
def test_impossible_choices_are_refused_with_the_fix(changes, message):
    with pytest.raises(ConfigError, match=message):
        DatasetConfig(**changes)


def test_lengths_are_what_is_asked_for_after_rounding():
    assert DatasetConfig(num_frames=75, frame_rounding="down").frame_lengths == (73,)
    assert DatasetConfig(num_frames=76, frame_rounding="nearest").frame_lengths == (77,)
    assert DatasetConfig(frame_buckets=(33, 16, 17), frame_rounding="nearest").frame_lengths == (17, 33)
    assert DatasetConfig(num_frames=13, frame_extraction="full").frame_lengths == (1, 5, 9, 13)
    settings = DatasetConfig(frame_buckets=(17, 33), crop="random")
    assert DatasetConfig.from_dict(settings.to_dict()) == settings


def two_scenes(make_clip, name: str = "clips/a.mp4", cut: int = 13, count: int = 30, fps: float = 16):
    """Red until frame `cut`, then blue; each frame a little different from the last."""
    pictures = []
    for number in range(count):
        picture = np.full((48, 64, 3), 10, np.uint8)
        picture[..., 0 if number < cut else 2] = 200 + number % 2
        pictures.append(picture)
    return make_clip(name, frames=pictures, fps=fps)


def is_red(frames: np.ndarray) -> list[bool]:
    return [bool(frame[24, 32, 0] > frame[24, 32, 2]) for frame in frames]


@pytest.mark.parametrize("fps", [24000 / 1001, *(pytest.param(fps, marks=pytest.mark.soak) for fps in (16, 30))])
def test_windows_never_cross_a_cut(video, make_clip, folder, fps):
    path = two_scenes(make_clip, cut=23, count=60, fps=fps)
    assert video.cuts(path, threshold=27.0, duration_s=60 / fps) == pytest.approx([23 / fps], abs=1e-4)
    crossing = scan(folder, video, frame_extraction="slide", frame_stride=1, num_frames=5)
    assert any(len(set(is_red(read_sample(video, s, 16.0)))) == 2 for s in crossing.samples)
    result = scan(folder, video, frame_extraction="slide", frame_stride=1, num_frames=5, split_scenes=True)
    colours = [set(is_red(read_sample(video, s, 16.0))) for s in result.samples]
    assert {True} in colours
    assert {False} in colours
    assert all(len(colour) == 1 for colour in colours)
    second = next(s for s in result.samples if s.cut.start_s > 22 / fps)
    assert second.cut.start_s == pytest.approx(23 / fps, abs=1e-4)


def test_frames_change_as_much_as_pyscenedetect_says():
    scenedetect = pytest.importorskip("scenedetect")
    detector = scenedetect.ContentDetector(min_scene_len=0)
    frames = np.random.default_rng(3).integers(0, 256, (4, 36, 64, 3), np.uint8)
    frames[2] = frames[1] // 3
    before = None
    for number, frame in enumerate(frames):
        detector.process_frame(scenedetect.FrameTimecode(number, fps=25.0), frame[..., ::-1].copy())
        now = hue_saturation_brightness(frame)
        if before is not None:
            assert np.abs(now - before).mean() == pytest.approx(detector._frame_score, abs=0.02)
        before = now


def test_the_report_counts_scenes_and_names_those_too_short(video, make_clip, folder):
    two_scenes(make_clip, cut=13, count=30)
    two_scenes(make_clip, "clips/b.mp4", cut=7, count=14)
    result = scan(folder, video, split_scenes=True)
    assert [(s.name, s.cut.start_s) for s in result.samples] == [("a.mp4", 0.0), ("a.mp4", 13 / 16)]
    assert "windows: head, 2 of 1 clip (2 of each)" in scan_report(result)
    assert "scenes: 2 in 1 clip; no window crosses a cut" in scan_report(result)
    assert result.rejected[0].reason == "has 2 scenes, the longest of 7 frames at 16 fps, fewer than num_frames 9"


@pytest.mark.parametrize(("fps", "num_frames"), [(16.0, 81), (24.0, 121)])
@pytest.mark.parametrize("source_fps", [16, 24, 30])
def test_a_clip_of_exactly_five_seconds_gives_81_and_121_frames(video, make_clip, folder, fps, num_frames, source_fps):
    make_clip("clips/a.mp4", num_frames=5 * source_fps, fps=source_fps)
    result = scan(folder, video, num_frames=num_frames, fps=fps)
    [sample] = result.samples
    assert (sample.bucket.num_frames, sample.cut.held) == (num_frames, 1)
    times: list[float] = []
    video.read(sample.path, fps=fps, num_frames=num_frames, width=64, height=48, times=times, held=1)
    assert times[-1] == pytest.approx(5 - 1 / source_fps, abs=1e-3), "the file's last frame"
    frames = read_sample(video, sample, fps)
    assert len(frames) == num_frames
    if source_fps <= fps:
        np.testing.assert_array_equal(frames[-1], frames[-2])
    assert f"one frame short of {num_frames}, so the last frame is repeated: a.mp4" in scan_report(result)
    found = dataset_facts(dataset_review(Dataset((result,)), video=video, digest_of=digest_file, space=WAN21_LATENTS))
    assert {"kind": "held_last", "count": 1, "names": ["a.mp4"]} in found["findings"]


@pytest.mark.parametrize("mode", ["head", "chunk", "slide", "uniform", "random"])
def test_one_missing_frame_gives_one_window_in_every_mode(video, make_clip, folder, mode):
    make_clip("clips/a.mp4", num_frames=8)
    assert shown(video, scan(folder, video, frame_extraction=mode)) == [[0, 7]]
    with pytest.raises(DatasetError, match="has 8 frames at 16 fps, fewer than num_frames 13"):
        scan(folder, video, frame_extraction=mode, num_frames=13)


def test_a_clip_that_fills_a_window_is_cut_and_named_as_ever(video, make_clip, folder):
    """No frame is held where one is short of a further window, of a longer one, or of a scene."""
    make_clip("clips/a.mp4", num_frames=16)
    for changes in ({}, {"frame_buckets": (9, 17)}, {"frame_extraction": "full", "num_frames": 17}):
        [sample] = scan(folder, video, **changes).samples
        assert (sample.cut.held, sample.bucket.num_frames <= 13) == (0, True)
    assert len(scan(folder, video, frame_extraction="chunk", num_frames=9).samples) == 1
