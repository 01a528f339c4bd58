"""Frames by presentation time, turned and cropped: real files, hand-computed times."""

from __future__ import annotations

import numpy as np
import pytest

from wan_core.errors import DatasetError


def levels(frames: np.ndarray) -> list[int]:
    """The number k of each grey frame (level 8 * k), read at the centre."""
    grey = frames[:, frames.shape[1] // 2, frames.shape[2] // 2, 1]
    return [round(int(level) / 8) for level in grey]


def test_a_clip_at_its_own_rate_comes_back_frame_by_frame(video, make_clip):
    path = make_clip("a.mp4", num_frames=20, fps=16)
    info = video.probe(path)
    assert (info.kind, info.width, info.height, info.num_frames) == ("clip", 64, 48, 20)
    assert info.fps == pytest.approx(16)
    assert info.duration_s == pytest.approx(1.25)
    assert not info.variable_rate
    assert info.frames_at(16) == 20
    frames = video.read(path, fps=16, num_frames=17, width=64, height=48)
    assert frames.shape == (17, 48, 64, 3)
    assert frames.dtype == np.uint8
    assert levels(frames) == list(range(17))


def test_24_frames_a_second_become_16_by_time(video, make_clip):
    path = make_clip("a.mp4", num_frames=24, fps=24)
    # output k is on screen at k / 16 s: source frame floor(k * 24 / 16) = floor(1.5 k)
    assert video.probe(path).frames_at(16) == 16
    times: list[float] = []
    frames = video.read(path, fps=16, num_frames=13, width=64, height=48, times=times)
    assert levels(frames) == [0, 1, 3, 4, 6, 7, 9, 10, 12, 13, 15, 16, 18]
    assert times == pytest.approx([n / 24 for n in levels(frames)], abs=1e-4)


def test_8_frames_a_second_are_shown_twice_each(video, make_clip):
    path = make_clip("a.mp4", num_frames=9, fps=8)
    frames = video.read(path, fps=16, num_frames=17, width=64, height=48)
    assert levels(frames) == [k // 2 for k in range(17)]


@pytest.mark.parametrize("name", ["a.mkv", "a.mp4"])
def test_variable_rate_goes_by_times_not_by_frame_numbers(video, make_clip, name):
    path = make_clip(name, times_ms=[0, 40, 200, 300, 301, 500])
    info = video.probe(path)
    assert info.variable_rate
    assert info.num_frames == 6
    # at 0, 62.5, 125, 187.5, 250, 312.5, 375, 437.5, 500 ms
    times: list[float] = []
    frames = video.read(path, fps=16, num_frames=9, width=64, height=48, times=times)
    assert levels(frames) == [0, 1, 1, 1, 2, 4, 4, 4, 5]
    assert times == pytest.approx([0, 0.04, 0.04, 0.04, 0.2, 0.301, 0.301, 0.301, 0.5], abs=2e-3)


def test_times_that_start_late_count_from_the_first_frame(video, make_clip):
    path = make_clip("a.mkv", times_ms=[5000, 5063, 5125, 5188, 5250])
    assert video.probe(path).duration_s == pytest.approx(0.3125, abs=0.01)
    frames = video.read(path, fps=16, num_frames=5, width=64, height=48)
    assert levels(frames) == [0, 1, 2, 3, 4]


def test_a_later_start_shifts_the_times(video, make_clip):
    path = make_clip("a.mp4", num_frames=20, fps=16)
    frames = video.read(path, fps=16, num_frames=5, width=64, height=48, start_s=0.5)
    assert levels(frames) == [8, 9, 10, 11, 12]


@pytest.mark.parametrize(
    ("name", "codec", "pix_fmt"),
    [
        ("a.webm", "libvpx-vp9", "yuv420p"),
        ("a.mkv", "libsvtav1", "yuv420p"),
        ("a.mov", "prores_ks", "yuv422p10le"),
        ("a.avi", "libx264", "yuv420p"),
        ("b.avi", "mpeg4", "yuv420p"),
        ("c.mkv", "ffv1", "yuv420p"),
    ],
)
def test_other_containers_and_codecs_give_the_same_frames(video, make_clip, name, codec, pix_fmt):
    path = make_clip(name, codec=codec, pix_fmt=pix_fmt, num_frames=12)
    assert video.probe(path).frames_at(16) == 12
    frames = video.read(path, fps=16, num_frames=9, width=64, height=48)
    np.testing.assert_allclose(frames[:, 24, 32, 1], 8 * np.arange(9), atol=6)


def test_a_gif_is_a_clip(video, make_clip):
    # gif keeps hundredths of a second: 10 frames a second fit
    path = make_clip("a.gif", codec="gif", pix_fmt="rgb8", num_frames=10, fps=10)
    info = video.probe(path)
    assert info.fps == pytest.approx(10)
    assert video.read(path, fps=10, num_frames=9, width=64, height=48).shape == (9, 48, 64, 3)


def corner_clip(make_clip, rotation: int):
    """A clip that is red in its stored top left quarter and black elsewhere."""
    picture = np.zeros((48, 64, 3), np.uint8)
    picture[:24, :32, 0] = 250
    return make_clip("r.mp4", frames=[picture] * 5, rotation=rotation)


@pytest.mark.parametrize(
    ("rotation", "red_corner"),
    [(90, (1, 0)), (-90, (0, 1)), (180, (1, 1)), (0, (0, 0))],
)
def test_rotation_is_applied_counter_clockwise(video, make_clip, rotation, red_corner):
    path = corner_clip(make_clip, rotation)
    info = video.probe(path)
    size = (48, 64) if rotation % 180 else (64, 48)
    assert (info.width, info.height) == size
    frame = video.read(path, fps=16, num_frames=1, width=size[0], height=size[1])[0]
    corners = {(row, column): int(frame[row * -20 + 10, column * -20 + 10, 0]) for row in (0, 1) for column in (0, 1)}
    assert max(corners, key=corners.__getitem__) == red_corner


def test_the_centre_is_kept_when_the_shape_differs(video, make_clip):
    picture = np.zeros((48, 96, 3), np.uint8)
    picture[:, 24:72] = 240  # the middle 48 columns
    path = make_clip("c.mp4", frames=[picture] * 5)
    frame = video.read(path, fps=16, num_frames=1, width=48, height=48)[0]
    assert frame.shape == (48, 48, 3)
    assert frame[:, 2:-2].min() > 220
    smaller = video.read(path, fps=16, num_frames=1, width=24, height=24)[0]
    assert smaller[:, 2:-2].min() > 220


def test_a_clip_with_too_few_frames_says_how_many_it_has(video, make_clip):
    path = make_clip("short.mp4", num_frames=6)
    with pytest.raises(DatasetError, match=r"short\.mp4 ends after 6 of 9 frames at 16 fps"):
        video.read(path, fps=16, num_frames=9, width=64, height=48)


def test_a_written_clip_reads_back_and_plays_in_a_browser(video, tmp_path):
    frames = np.stack([np.full((50, 66, 3), (8 * k, 128, 200), np.uint8) for k in range(9)])
    path = tmp_path / "out.mp4"
    video.write(path, frames, 16)
    info = video.probe(path)
    assert (info.codec, info.width, info.height, info.num_frames) == ("h264", 66, 50, 9)
    assert info.fps == pytest.approx(16)
    back = video.read(path, fps=16, num_frames=9, width=66, height=50)
    np.testing.assert_allclose(back[:, 5:-5, 5:-5], frames[:, 5:-5, 5:-5], atol=5)
    data = path.read_bytes()
    assert 0 < data.index(b"moov") < data.index(b"mdat")
    assert [entry.name for entry in tmp_path.iterdir()] == ["out.mp4"]


def test_odd_sizes_lose_one_line(video, tmp_path):
    video.write(tmp_path / "odd.mp4", np.zeros((2, 49, 65, 3), np.uint8), 16)
    info = video.probe(tmp_path / "odd.mp4")
    assert (info.width, info.height) == (64, 48)
