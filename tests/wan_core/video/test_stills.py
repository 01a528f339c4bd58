"""Stills: turned by EXIF, without transparency, cropped around the centre."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from wan_core.errors import DatasetError
from wan_core.video import VideoProcess


@pytest.fixture(scope="module")
def video():
    with VideoProcess() as process:
        yield process


@pytest.mark.parametrize("suffix", ["png", "jpg", "jpeg", "webp", "bmp"])
def test_every_kind_of_still_is_one_frame(video, tmp_path, suffix):
    path = tmp_path / f"a.{suffix}"
    Image.new("RGB", (80, 40), (200, 100, 50)).save(path)
    info = video.probe(path)
    assert (info.kind, info.width, info.height, info.frames_at(16)) == ("still", 80, 40, 1)
    frames = video.read(path, fps=16, num_frames=1, width=32, height=32)
    assert frames.shape == (1, 32, 32, 3)
    np.testing.assert_allclose(frames[0, 16, 16], (200, 100, 50), atol=4)


def test_a_phone_picture_is_turned(video, tmp_path):
    picture = Image.new("RGB", (80, 40))
    picture.paste((250, 0, 0), (0, 0, 40, 40))  # left half red
    exif = Image.Exif()
    exif[0x0112] = 6  # turn 90 degrees clockwise to view: left becomes top
    path = tmp_path / "phone.jpg"
    picture.save(path, exif=exif)
    info = video.probe(path)
    assert (info.width, info.height) == (40, 80)
    frame = video.read(path, fps=16, num_frames=1, width=40, height=80)[0]
    assert frame[10, 20, 0] > 200
    assert frame[70, 20, 0] < 50


def test_transparent_parts_become_white(video, tmp_path):
    Image.new("RGBA", (40, 40), (0, 0, 0, 0)).save(tmp_path / "clear.png")
    frame = video.read(tmp_path / "clear.png", fps=16, num_frames=1, width=32, height=32)[0]
    assert frame.min() == 255


@pytest.mark.parametrize("suffix", ["png", "jpg"])
def test_a_cut_still_is_found_by_the_probe(video, tmp_path, suffix):
    path = tmp_path / f"cut.{suffix}"
    noise = np.random.default_rng(0).integers(0, 255, (200, 200, 3), np.uint8)
    Image.fromarray(noise).save(path)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(DatasetError, match=rf"cut\.{suffix} cannot be read as a still"):
        video.probe(path)
