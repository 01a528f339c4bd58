"""Stills: turned by EXIF, without transparency, cropped around the centre."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image, TiffImagePlugin, features

from tests.support.pyavs import INSTALLED
from wan_core.errors import DatasetError


@pytest.fixture(scope="module")
def video(child_on):
    return child_on(INSTALLED)


@pytest.mark.parametrize("suffix", ["png", "jpg", "jpeg", "webp", "bmp", "tif", "tiff", "avif"])
def test_every_kind_of_still_is_one_frame(video, tmp_path, suffix):
    path = tmp_path / f"a.{suffix}"
    if suffix == "avif" and not features.check("avif"):
        pytest.skip("this Pillow has no AVIF; 11.3 has")
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


RAMP = np.linspace(0, 65535, 32).astype(np.uint16)[None].repeat(32, 0)
"""columns from black to white in 16 bits"""


def grey(mode: str, values: np.ndarray) -> Image.Image:
    return Image.frombytes(mode, values.shape[::-1], values.tobytes())


def white_is_zero() -> dict[int, int]:
    return {TiffImagePlugin.PHOTOMETRIC_INTERPRETATION: 0}


def first_row(video, path: Path) -> np.ndarray:
    """One value a column; the file has no colours."""
    frame = video.read(path, fps=16, num_frames=1, width=32, height=32)[0]
    assert (frame == frame[..., :1]).all()
    assert (frame == frame[:1]).all()
    return frame[0, :, 0].astype(int)


@pytest.mark.parametrize(
    ("name", "picture", "options"),
    [
        ("i16.png", grey("I;16", RAMP), {}),
        ("i16.tif", grey("I;16", RAMP), {}),
        ("i16b.tif", grey("I;16B", RAMP.astype(">u2")), {}),
        ("lzw.tiff", grey("I;16", RAMP), {"compression": "tiff_lzw"}),
    ],
)
def test_sixteen_bits_of_grey_are_scaled_and_not_clipped(video, tmp_path, name, picture, options):
    picture.save(tmp_path / name, **options)
    assert video.probe(tmp_path / name).bits == 16, "so latents of white pictures are not found again"
    np.testing.assert_array_equal(first_row(video, tmp_path / name), np.rint(RAMP[0] / 257).astype(int))


def test_sixteen_bits_in_which_white_is_zero_are_turned_over(video, tmp_path):
    grey("I;16", 65535 - RAMP).save(tmp_path / "white.tif", tiffinfo=white_is_zero())
    np.testing.assert_array_equal(first_row(video, tmp_path / "white.tif"), np.rint(RAMP[0] / 257).astype(int))


def test_a_grey_that_a_16_bit_picture_calls_transparent_becomes_white(video, tmp_path):
    grey("I;16", RAMP).save(tmp_path / "clear.png", transparency=int(RAMP[0, 5]))
    row = first_row(video, tmp_path / "clear.png")
    assert row[[4, 5, 6]].tolist() == [33, 255, 49]


def test_a_turned_16_bit_picture_is_turned(video, tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 3
    grey("I;16", RAMP).save(tmp_path / "turned.png", exif=exif)
    assert first_row(video, tmp_path / "turned.png")[[0, -1]].tolist() == [255, 0]


@pytest.mark.parametrize(
    ("mode", "value", "shown"),
    [
        ("1", 1, (255, 255, 255)),
        ("L", 77, (77, 77, 77)),
        ("LA", (0, 0), (255, 255, 255)),
        ("LA", (77, 255), (77, 77, 77)),
        ("RGBA", (200, 100, 50, 255), (200, 100, 50)),
    ],
)
@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_other_modes_are_seen_as_they_are_meant(video, tmp_path, suffix, mode, value, shown):
    Image.new(mode, (32, 32), value).save(tmp_path / f"a.{suffix}")
    frame = video.read(tmp_path / f"a.{suffix}", fps=16, num_frames=1, width=32, height=32)[0]
    assert tuple(frame[9, 9].tolist()) == shown
    assert video.probe(tmp_path / f"a.{suffix}").bits == 8


def test_a_palette_with_a_transparent_colour_is_white_there(video, tmp_path):
    picture = Image.new("P", (32, 32), 1)
    picture.putpalette([10, 20, 30, 40, 50, 60])
    picture.paste(0, (0, 0, 16, 32))
    picture.save(tmp_path / "a.png", transparency=0)
    frame = video.read(tmp_path / "a.png", fps=16, num_frames=1, width=32, height=32)[0]
    assert (frame[9, 3].tolist(), frame[9, 30].tolist()) == ([255, 255, 255], [40, 50, 60])


def test_inks_become_colours(video, tmp_path):
    Image.new("CMYK", (32, 32), (255, 0, 0, 0)).save(tmp_path / "a.tif")
    frame = video.read(tmp_path / "a.tif", fps=16, num_frames=1, width=32, height=32)[0]
    assert frame[9, 9].tolist() == [0, 255, 255]


@pytest.mark.parametrize(
    ("picture", "said"),
    [
        (Image.fromarray(RAMP.astype(np.float32)), "has floating-point pixels, so its white level is unknown"),
        (Image.fromarray(RAMP.astype(np.int32)), "has 32-bit integer pixels, so its white level is unknown"),
        (Image.new("LAB", (32, 32)), "holds colours as LAB"),
    ],
)
def test_numbers_that_say_no_colour_are_refused_by_name(video, tmp_path, picture, said):
    picture.save(tmp_path / "a.tif")
    with pytest.raises(DatasetError, match=rf"a\.tif {said}.*Save it as a PNG of 8 or 16 bits"):
        video.probe(tmp_path / "a.tif")


def test_of_several_pages_the_first_is_taken_and_that_is_known(video, tmp_path):
    pages = [Image.new("RGB", (32, 32), (80 * number, 0, 0)) for number in range(3)]
    pages[1].save(tmp_path / "a.tif", save_all=True, append_images=pages[2:])
    pages[1].save(tmp_path / "one.tif")
    assert [video.probe(tmp_path / name).more_pages for name in ("a.tif", "one.tif")] == [True, False]
    assert video.read(tmp_path / "a.tif", fps=16, num_frames=1, width=32, height=32)[0, 9, 9].tolist() == [80, 0, 0]


def test_a_pillow_without_avif_is_named_with_what_to_install(tmp_path, monkeypatch):
    from wan_core.video import stills

    (tmp_path / "a.avif").write_bytes(b"\0\0\0\x1cftypavif" + bytes(200))
    monkeypatch.setattr(stills, "_FORMATS", ("PNG",))
    with pytest.raises(DatasetError, match=r"a\.avif is an AVIF picture.*pillow>=11\.3"):
        stills.probe_still(tmp_path / "a.avif")


def test_the_advice_fits_the_cause(video, tmp_path):
    path = tmp_path / "large.jpg"
    Image.new("L", (16000, 12000)).save(path, quality=5)
    with pytest.raises(DatasetError, match=r"large\.jpg has more than [\d,]+ pixels\. Scale it down") as caught:
        video.probe(path)
    assert "PNG" not in str(caught.value)
    Image.new("RGB", (200, 200)).save(tmp_path / "cut.jpg")
    (tmp_path / "cut.jpg").write_bytes((tmp_path / "cut.jpg").read_bytes()[:-300])
    with pytest.raises(DatasetError, match=r"cut\.jpg cannot be read as a still.*Copy or download it again"):
        video.probe(tmp_path / "cut.jpg")
    (tmp_path / "text.jpg").write_text("no picture")
    with pytest.raises(DatasetError, match="Save it again as PNG"):
        video.probe(tmp_path / "text.jpg")


@pytest.mark.parametrize("suffix", ["png", "jpg"])
def test_a_cut_still_is_found_by_the_probe(video, tmp_path, suffix):
    path = tmp_path / f"cut.{suffix}"
    noise = np.random.default_rng(0).integers(0, 255, (200, 200, 3), np.uint8)
    Image.fromarray(noise).save(path)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(DatasetError, match=rf"cut\.{suffix} cannot be read as a still"):
        video.probe(path)
