"""Images of the graph as files: every byte comes back, nothing is written twice, and what cannot be used is named."""

from __future__ import annotations

import functools
import weakref

import numpy as np
import pytest
import torch

from wan_core.dataset import DatasetConfig, ScanContext
from wan_core.errors import DatasetError
from wan_core.importers import match_captions, scan_pixels


def pictures(frames: int, height: int = 48, width: int = 64, seed: int = 0) -> torch.Tensor:
    values = np.random.default_rng(seed).integers(0, 256, (frames, height, width, 3), dtype=np.uint8)
    return torch.from_numpy(values).float() / 255


def settings(**changes) -> DatasetConfig:
    return DatasetConfig(**{"width": 64, "height": 48, "num_frames": 5, **changes})


def scan(tmp_path, video, clips, captions, *, stills=False, fps=16.0, **changes):
    matched = match_captions(clips, captions, [fps], stills=stills)
    return scan_pixels(settings(**changes), matched, ScanContext(video), stills=stills, cache_root=tmp_path)


def read(video, sample, fps=16.0):
    bucket = sample.bucket
    return video.read(sample.path, fps=fps, num_frames=bucket.num_frames, width=bucket.width, height=bucket.height)


def as_bytes(pixels: torch.Tensor) -> np.ndarray:
    return (pixels * 255).round().to(torch.uint8).numpy()


@pytest.mark.parametrize(
    ("fps", "size"),
    [
        (24000 / 1001, (48, 80)),
        *(
            pytest.param(fps, size, marks=pytest.mark.soak)
            for fps in (16.0, 24000 / 1001)
            for size in ((48, 64), (48, 80), (720, 1280))
            if (fps, size) != (24000 / 1001, (48, 80))
        ),
    ],
)
def test_every_byte_of_a_clip_comes_back(tmp_path, video, size, fps):
    height, width = size
    clip = pictures(5, 48, 80)[:, :, :width]
    clip = clip.repeat_interleave(15, 1).repeat_interleave(16, 2) if height == 720 else clip
    matched = match_captions([clip], ["noise"], [fps], stills=False)
    config = settings(width=width, height=height, fps=fps)
    (sample,) = scan_pixels(config, matched, ScanContext(video), stills=False, cache_root=tmp_path).samples
    assert sample.info.num_frames == 5
    assert sample.info.fps == pytest.approx(fps)
    assert np.array_equal(read(video, sample, fps), as_bytes(clip))


def test_stills_come_back_and_each_frame_is_one(tmp_path, video):
    batch = pictures(3)
    found = scan(tmp_path, video, [batch[:2], batch[2:]], ["a", "b", "c"], stills=True)
    assert [(s.name, s.caption, s.kind) for s in found.samples] == [
        (f"still {n}", caption, "still") for n, caption in enumerate("abc", 1)
    ]
    for sample, frame in zip(found.samples, batch, strict=True):
        assert np.array_equal(read(video, sample)[0], as_bytes(frame))


def test_a_second_queue_writes_nothing(tmp_path, video):
    clips = [pictures(5), pictures(9, seed=1)]
    first = scan(tmp_path, video, clips, ["a", "b"])
    before = {file: file.stat() for file in tmp_path.rglob("*") if file.is_file()}
    assert len(before) == 2
    second = scan(tmp_path, video, [clip.clone() for clip in clips], ["a", "other words"])
    assert {file: file.stat() for file in tmp_path.rglob("*") if file.is_file()} == before
    assert [s.mark for s in second.samples] == [s.mark for s in first.samples]
    scan(tmp_path, video, clips, ["a", "b"], fps=8.0)
    scan(tmp_path, video, [clips[1].flip(0)], ["a"])
    assert len([file for file in tmp_path.rglob("*") if file.is_file()]) == 5, "another rate or other pixels: others"


def test_clips_are_resampled_by_time_as_files_are(tmp_path, video):
    """Frame k of a 16 fps model is what is on screen at k / 16 s."""
    clip = pictures(10)
    (half,) = scan(tmp_path, video, [clip], ["a"], fps=32.0).samples
    assert np.array_equal(read(video, half), as_bytes(clip)[[0, 2, 4, 6, 8]])
    (twice,) = scan(tmp_path, video, [clip[:3]], ["a"], fps=8.0).samples
    assert np.array_equal(read(video, twice), as_bytes(clip)[[0, 0, 1, 1, 2]])


def test_clips_that_are_decoded_when_read_are_the_same_and_one_at_a_time(tmp_path, video):
    """What a VIDEO of the graph is: nothing of it is held between looking at it and keeping it."""
    clips, alive = [pictures(5, seed=seed) for seed in range(3)], []

    def decoded(number):
        assert not [one for one in alive if one() is not None], "another clip is still in memory"
        frames = clips[number].clone()
        alive.append(weakref.ref(frames))
        return frames

    lazy = [functools.partial(decoded, number) for number in range(3)]
    first = scan(tmp_path / "lazy", video, lazy, ["a", "b", "c"])
    second = scan(tmp_path / "held", video, clips, ["a", "b", "c"])
    assert [s.path.read_bytes() for s in first.samples] == [s.path.read_bytes() for s in second.samples]
    with pytest.raises(DatasetError, match=r"A VIDEO is one clip\. Set batch_is to clip"):
        scan(tmp_path, video, lazy, ["a"] * 15, stills=True)


def test_each_clip_may_have_a_frame_rate_of_its_own(tmp_path, video):
    clips = [pictures(10), pictures(5)]
    matched = match_captions(clips, ["a", "b"], [32.0, 16.0], stills=False)
    found = scan_pixels(settings(), matched, ScanContext(video), stills=False, cache_root=tmp_path).samples
    assert [sample.info.fps for sample in found] == [32.0, 16.0]
    with pytest.raises(DatasetError, match=r"3 frame rates for 2 clips\. Give fps one number, or one for each clip"):
        match_captions(clips, ["a", "b"], [16.0] * 3, stills=False)


def test_one_text_may_hold_a_line_for_each_clip():
    clips = [pictures(1), pictures(1), pictures(1)]
    assert [c.caption for c in match_captions(clips, ["one\n\n two  three\nfour\n"], [16.0], stills=False)] == [
        *("one", "two three", "four"),
    ]
    assert [c.caption for c in match_captions(clips[:1], ["one\ntwo"], [16.0], stills=False)] == ["one two"]


@pytest.mark.parametrize(
    ("clips", "captions", "said"),
    [
        ([], [], "No clips are connected"),
        ([], ["a"], "No clips are connected"),
        ([5, 5], ["a", "b", "c"], "more captions than clips: 3 for 2. Give exactly one caption for each clip"),
        ([5, 5], ["a"], "fewer captions than clips: 1 for 2"),
        ([5], [], "fewer captions than clips: 0 for 1"),
        ([5, 5], ["a", " "], "Caption 2 of 2 is empty"),
        ([5, 3], ["a", "b"], "clip 2 has 3 frames at 16 fps, fewer than num_frames 5. Lower num_frames"),
    ],
)
def test_what_does_not_match_is_refused_before_anything_is_written(tmp_path, video, clips, captions, said):
    with pytest.raises(DatasetError, match=said):
        scan(tmp_path, video, [pictures(n) for n in clips], captions)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("clip", "said"),
    [
        (torch.zeros(5, 8, 64, 3), "clip 1 is only 64x8 pixels"),
        (torch.zeros(5, 64, 64), r"clip 1 has shape \[5, 64, 64\]"),
        (torch.zeros(5, 64, 64, 1), r"clip 1 has shape \[5, 64, 64, 1\]; an IMAGE is"),
        (torch.full((5, 64, 64, 3), torch.nan), "clip 1 contains NaN or infinity"),
    ],
)
def test_what_is_no_picture_is_refused(tmp_path, video, clip, said):
    with pytest.raises(DatasetError, match=said):
        scan(tmp_path, video, [clip], ["a"])
    assert not list(tmp_path.iterdir())


def test_too_few_frames_at_the_rate_of_the_model_are_named_with_both_rates(tmp_path, video):
    with pytest.raises(DatasetError, match=r"clip 1 has 3 frames at 16 fps \(5 at 30 fps\), fewer than num_frames 5"):
        scan(tmp_path, video, [pictures(5)], ["a"], fps=30.0)


@pytest.mark.parametrize("left", [0, 7, -100])
def test_a_kept_clip_that_was_cut_is_written_again(tmp_path, video, left):
    (sample,) = scan(tmp_path, video, [pictures(5)], ["a"]).samples
    whole = sample.path.read_bytes()
    sample.path.write_bytes(whole[:left])
    scan(tmp_path, video, [pictures(5)], ["a"])
    assert sample.path.read_bytes() == whole


def test_transparency_is_dropped(tmp_path, video):
    clip = torch.cat([pictures(5), torch.zeros(5, 48, 64, 1)], -1)
    (sample,) = scan(tmp_path, video, [clip], ["a"]).samples
    assert np.array_equal(read(video, sample), as_bytes(clip[..., :3]))
