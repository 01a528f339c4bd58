"""Turning, scaling, cropping and mirroring together: pictures whose every quarter has a colour of its own."""

from __future__ import annotations

import itertools
import struct

import numpy as np
import pytest
from PIL import Image

from tests.support.odd_videos import write_clip
from wan_core.video import Framing, covered_size

RED, GREEN, BLUE, WHITE = (220, 30, 30), (30, 180, 30), (30, 30, 220), (230, 230, 230)
CORNERS = [(-1, -1), (1, -1), (-1, 1), (1, 1)]
"""x and y, row by row"""
NAMES = {RED: "R", GREEN: "G", BLUE: "B", WHITE: "W"}


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


def set_matrix(path, a: int, b: int, c: int, d: int) -> None:
    """Writes the display matrix of the first track: the stored point (x, y) is shown at (a x + c y, b x + d y)."""
    one = 1 << 16
    plain = struct.pack(">9i", one, 0, 0, 0, one, 0, 0, 0, 1 << 30)
    data = path.read_bytes()
    track = data.index(plain, data.index(b"tkhd"))
    new = struct.pack(">9i", a * one, b * one, 0, c * one, d * one, 0, 0, 0, 1 << 30)
    path.write_bytes(data[:track] + new + data[track + len(new) :])


MATRICES = [
    (a, b, c, d) for a, b, c, d in itertools.product((-1, 0, 1), repeat=4) if abs(a) == abs(d) != abs(b) == abs(c)
]


@pytest.mark.parametrize("matrix", MATRICES)
def test_all_eight_display_matrices_are_shown_as_they_say(video, make_clip, matrix):
    path = make_clip("a.mp4", frames=[quarters()] * 5)
    set_matrix(path, *matrix)
    a, b, c, d = matrix
    shown = {(a * x + c * y, b * x + d * y): name for (x, y), name in zip(CORNERS, "RGBW", strict=True)}
    info = video.probe(path)
    assert (info.width, info.height) == ((64, 48) if a else (48, 64))
    for width, height in ((info.width, info.height), (32, 32)):
        frame = video.read(path, fps=16, num_frames=1, width=width, height=height)[0]
        assert corners(frame) == "".join(shown[corner] for corner in CORNERS)
    assert info.mirrored == (a * d - b * c < 0)


@pytest.mark.parametrize(("ratio", "size"), [("40:39", (64, 48)), ("33:32", (66, 48)), ("4:3", (85, 48))])
def test_pixels_that_are_nearly_square_are_not_resampled(video, make_clip, ratio, size):
    noise = np.random.default_rng(0).integers(0, 255, (48, 64, 3), np.uint8)
    plain = make_clip("plain.mp4", frames=[noise] * 5, options={"qp": "0"})
    marked = make_clip("marked.mp4", frames=[noise] * 5, options={"qp": "0"}, pixel_ratio=ratio)
    info = video.probe(marked)
    assert (info.width, info.height) == size
    if info.pixel_ratio == 1:
        frames = [video.read(path, fps=16, num_frames=1, width=64, height=48) for path in (plain, marked)]
        np.testing.assert_array_equal(*frames)


TRANSPARENT = [("qtrle", "argb", ".mov"), ("prores_ks", "yuva444p10le", ".mov"), ("libvpx-vp9", "yuva420p", ".webm")]


@pytest.mark.parametrize(("codec", "pix_fmt", "suffix"), [*TRANSPARENT, ("png", "rgba", ".png")])
def test_what_is_transparent_becomes_white_in_clips_as_in_stills(video, tmp_path, codec, pix_fmt, suffix):
    picture = np.full((48, 64, 4), (40, 90, 200, 255), np.uint8)
    picture[:, :16, 3], picture[:, 16:32, 3] = 0, 128
    path = tmp_path / f"a{suffix}"
    if suffix == ".png":
        Image.fromarray(picture).save(path)
    else:
        write_clip(path, [picture] * 3, codec=codec, pix_fmt=pix_fmt, alpha_mode=codec == "libvpx-vp9")
    frame = video.read(path, fps=16, num_frames=1, width=64, height=48)[0]
    half = [round(level * 128 / 255 + 127) for level in (40, 90, 200)]
    np.testing.assert_allclose(frame[24, 8], [255] * 3, atol=4)
    np.testing.assert_allclose(frame[24, 24], half, atol=4)
    np.testing.assert_allclose(frame[24, 48], [40, 90, 200], atol=4)


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
