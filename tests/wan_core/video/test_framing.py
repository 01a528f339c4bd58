"""Turning, scaling, cropping and mirroring together: pictures whose every quarter has a colour of its own."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from wan_core.video import Framing, VideoProcess, covered_size

RED, GREEN, BLUE, WHITE = (220, 30, 30), (30, 180, 30), (30, 30, 220), (230, 230, 230)
NAMES = {RED: "R", GREEN: "G", BLUE: "B", WHITE: "W"}


@pytest.fixture(scope="module")
def video():
    with VideoProcess() as process:
        yield process


def quarters(width: int = 64, height: int = 48) -> np.ndarray:
    """R G over B W."""
    picture = np.zeros((height, width, 3), np.uint8)
    picture[: height // 2, : width // 2], picture[: height // 2, width // 2 :] = RED, GREEN
    picture[height // 2 :, : width // 2], picture[height // 2 :, width // 2 :] = BLUE, WHITE
    return picture


def corners(frame: np.ndarray) -> str:
    """The colours at the four corners, row by row: RGBW for the picture as drawn."""
    height, width = frame.shape[:2]
    spots = [frame[y, x] for y in (6, height - 7) for x in (6, width - 7)]
    return "".join(NAMES[min(NAMES, key=lambda colour: np.abs(spot.astype(int) - colour).sum())] for spot in spots)


@pytest.mark.parametrize(
    ("rotation", "size", "plain", "mirrored"),
    [
        (0, (64, 48), "RGBW", "GRWB"),
        (90, (48, 64), "GWRB", "WGBR"),  # counter-clockwise: the right column becomes the top row
        (180, (64, 48), "WBGR", "BWRG"),
        (-90, (48, 64), "BRWG", "RBGW"),
    ],
)
def test_a_clip_is_turned_first_and_mirrored_last(video, make_clip, rotation, size, plain, mirrored):
    path = make_clip("a.mp4", frames=[quarters()] * 5, rotation=rotation)
    info = video.probe(path)
    assert (info.width, info.height) == size
    for flip, expected in ((False, plain), (True, mirrored)):
        for framing in (Framing(flip=flip), Framing(flip=flip, native=True)):
            frame = video.read(path, fps=16, num_frames=1, width=size[0], height=size[1], framing=framing)[0]
            assert corners(frame) == expected


@pytest.mark.parametrize(
    ("rotation", "wanted", "offset", "expected"),
    [
        (0, (32, 48), (0, 0), "RRBB"),
        (0, (32, 48), (32, 0), "GGWW"),
        (0, (64, 24), (0, 24), "BWBW"),
        (90, (24, 64), (0, 0), "GGRR"),
        (90, (24, 64), (24, 0), "WWBB"),
        (180, (32, 48), (0, 0), "WWGG"),
        (-90, (48, 32), (0, 32), "WGWG"),
    ],
)
def test_an_offset_counts_in_the_picture_as_it_is_shown(video, make_clip, rotation, wanted, offset, expected):
    path = make_clip("a.mp4", frames=[quarters()] * 5, rotation=rotation)
    size = {"width": wanted[0], "height": wanted[1]}
    frame = video.read(path, fps=16, num_frames=1, **size, framing=Framing(offset=offset))[0]
    assert frame.shape == (wanted[1], wanted[0], 3)
    assert corners(frame) == expected
    mirrored = video.read(path, fps=16, num_frames=1, **size, framing=Framing(offset=offset, flip=True))[0]
    np.testing.assert_array_equal(mirrored, frame[:, ::-1])


def test_pixels_that_are_wider_than_high_are_stretched_first(video, make_clip):
    """64 stored columns of 4:3 are shown as 85; the middle 48 of them are the stored columns 14 to 50."""
    picture = np.zeros((48, 64, 3), np.uint8)
    picture[:, 12:52] = 230
    path = make_clip("a.mp4", frames=[picture] * 5, options={"x264-params": "sar=4/3"})
    info = video.probe(path)
    assert (info.width, info.height) == (85, 48)
    assert info.pixel_ratio == pytest.approx(4 / 3)
    frame = video.read(path, fps=16, num_frames=1, width=48, height=48)[0]
    assert frame.min() > 200


def test_native_pixels_are_the_file_s_own(video, make_clip):
    """Without a scaler in between: the crop of the whole frame, to the last bit."""
    noise = np.random.default_rng(0).integers(0, 255, (70, 102, 3), np.uint8)
    path = make_clip("a.mkv", frames=[noise] * 5, codec="ffv1", pix_fmt="bgr0")
    frame = video.read(path, fps=16, num_frames=1, width=96, height=64, framing=Framing(native=True))[0]
    np.testing.assert_array_equal(frame, noise[3:67, 3:99])
    moved = video.read(path, fps=16, num_frames=1, width=96, height=64, framing=Framing(native=True, offset=(6, 0)))[0]
    np.testing.assert_array_equal(moved, noise[0:64, 6:102])


@pytest.mark.parametrize(("offset", "expected"), [((0, 0), "RRBB"), ((32, 0), "GGWW"), (None, "RGBW")])
def test_stills_are_cropped_and_mirrored_as_clips_are(video, tmp_path, offset, expected):
    Image.fromarray(quarters()).save(tmp_path / "a.png")
    size = {"fps": 16, "num_frames": 1, "width": 32, "height": 48}
    frame = video.read(tmp_path / "a.png", **size, framing=Framing(offset=offset))[0]
    assert corners(frame) == expected
    mirrored = video.read(tmp_path / "a.png", **size, framing=Framing(offset=offset, flip=True))[0]
    np.testing.assert_array_equal(mirrored, frame[:, ::-1])


def test_a_native_still_keeps_its_pixels(video, tmp_path):
    noise = np.random.default_rng(0).integers(0, 255, (50, 70, 3), np.uint8)
    Image.fromarray(noise).save(tmp_path / "a.png")
    read = {"fps": 16, "num_frames": 1, "width": 64, "height": 48, "framing": Framing(native=True)}
    np.testing.assert_array_equal(video.read(tmp_path / "a.png", **read)[0], noise[1:49, 3:67])


@pytest.mark.parametrize("rotation", [0, 90])
def test_a_very_long_strip_is_cut_before_it_is_scaled(video, make_clip, rotation):
    """Scaled whole, 16 x 4096 pixels would become 832 x 212992: half a gigabyte a frame."""
    strip = np.zeros((16, 4096, 3), np.uint8)
    strip[:, 2032:2064] = 240  # all that is seen of it
    path = make_clip("a.mp4", frames=[strip] * 2, rotation=rotation)
    wanted = (832, 480) if rotation == 0 else (480, 832)
    assert covered_size((16, 4096), (832, 480)) == (832, 212992)
    frame = video.read(path, fps=16, num_frames=1, width=wanted[0], height=wanted[1])[0]
    assert frame.shape == (wanted[1], wanted[0], 3)
    assert frame[100:-100, 100:-100].min() > 200
