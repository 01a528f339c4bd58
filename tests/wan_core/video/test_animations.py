"""Animated WebP, PNG and AVIF: clips with the time of each of their frames, as ComfyUI and image editors write them."""

from __future__ import annotations

import re
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, features

from tests.support.pyavs import INSTALLED
from wan_core.errors import DatasetError
from wan_core.video import Framing, VideoProcess

KINDS = ["a.webp", "a.png", "a.apng", "a.avif"]


@pytest.fixture(scope="module")
def video(child_on):
    return child_on(INSTALLED)


def levels(count: int, mode: str = "RGB", size: tuple[int, int] = (64, 48)) -> list[Image.Image]:
    """Frame k is of grey 7 k."""
    return [Image.new("L", size, 7 * number).convert(mode) for number in range(count)]


def save(path: Path, frames: list[Image.Image], duration: int | list[int], **options) -> Path:
    """As ComfyUI's Save Animated WEBP and PNG do, without loss."""
    if path.suffix == ".avif" and not features.check("avif"):
        pytest.skip("this Pillow has no AVIF; 11.3 has")
    lossless = {".webp": {"lossless": True}, ".avif": {"quality": 100, "speed": 9}}.get(path.suffix, {})
    kind = "PNG" if path.suffix == ".apng" else None
    frames[0].save(path, kind, save_all=True, append_images=frames[1:], duration=duration, **{**lossless, **options})
    return path


def greys(video: VideoProcess, path: Path, count: int, fps: float = 16, **how) -> list[int]:
    """What each frame of 32 x 32 shows."""
    frames = video.read(path, fps=fps, num_frames=count, width=32, height=32, **how)
    assert frames.shape == (count, 32, 32, 3)
    assert int(frames.std((1, 2, 3)).max()) <= 1
    return [int(grey) for grey in frames[:, 16, 16, 0]]


@pytest.mark.parametrize("name", KINDS)
def test_what_moves_is_a_clip_with_its_own_frame_rate(video, tmp_path, name):
    path = save(tmp_path / name, levels(33), 62)
    info = video.probe(path)
    assert (info.kind, info.width, info.height, info.num_frames) == ("clip", 64, 48, 33)
    assert info.duration_s == pytest.approx(33 * 0.062)
    assert info.fps == pytest.approx(1 / 0.062)
    assert not info.variable_rate
    assert info.frames_at(16) == 33
    np.testing.assert_allclose(greys(video, path, 33), [7 * k for k in range(33)], atol=2 if "avif" in name else 0)


@pytest.mark.parametrize("name", KINDS)
def test_frames_of_different_lengths_are_shown_as_long_as_they_say(video, tmp_path, name):
    path = save(tmp_path / name, levels(4), [100, 300, 100, 500])
    info = video.probe(path)
    assert (info.variable_rate, info.num_frames, info.duration_s) == (True, 4, pytest.approx(1.0))
    shown = [0, 1, 1, 1, 2, 3, 3, 3, 3, 3]
    np.testing.assert_allclose(greys(video, path, 10, fps=10), [7 * k for k in shown], atol=2)
    np.testing.assert_allclose(greys(video, path, 3, fps=10, start_s=0.3), [7, 14, 21], atol=2)
    with pytest.raises(DatasetError, match="ends after 10 of 11 frames"):
        greys(video, path, 11, fps=10)
    assert greys(video, path, 11, fps=10, held=1)[-1] == pytest.approx(21, abs=2)


def test_the_times_of_the_frames_behind_are_known(video, tmp_path):
    path = save(tmp_path / "a.webp", levels(4), [100, 300, 100, 500])
    times: list[float] = []
    video.read(path, fps=10, num_frames=6, width=32, height=32, times=times)
    assert times == pytest.approx([0, 0.1, 0.1, 0.1, 0.4, 0.5])


@pytest.mark.parametrize("name", ["a.webp", "a.png"])
def test_transparent_parts_become_white_in_each_frame(video, tmp_path, name):
    frames = levels(3, "RGBA")
    for number, frame in enumerate(frames):
        frame.putalpha(Image.new("L", frame.size, 255 * (number % 2)))
    # Pillow's writer would leave out what a reader cannot see.
    options = {"disposal": 1} if name == "a.png" else {"exact": True}
    path = save(tmp_path / name, frames, 100, **options)
    assert greys(video, path, 3, fps=10) == [255, 7, 255]


@pytest.mark.parametrize("name", ["a.webp", "a.png", "a.avif"])
def test_one_frame_stays_a_still(video, tmp_path, name):
    path = save(tmp_path / name, levels(1), 100)
    assert video.probe(path).kind == "still"
    assert video.read(path, fps=16, num_frames=1, width=32, height=32).shape == (1, 32, 32, 3)


def test_the_picture_for_readers_without_animation_is_no_frame(video, tmp_path):
    path = save(tmp_path / "a.png", [Image.new("RGB", (64, 48), "white"), *levels(3)], 100, default_image=True)
    assert video.probe(path).num_frames == 3
    assert greys(video, path, 3, fps=10) == [0, 7, 14]
    lone = save(tmp_path / "b.png", [Image.new("RGB", (64, 48), "white"), *levels(1)], 100, default_image=True)
    assert video.probe(lone).kind == "still"


def test_the_content_counts_and_not_the_ending(video, tmp_path):
    path = save(tmp_path / "a.webp", levels(5), 100).rename(tmp_path / "a.jpg")
    assert (video.probe(path).kind, greys(video, path, 5, fps=10)[-1]) == ("clip", 28)


def test_metadata_as_comfyui_writes_it_does_not_matter(video, tmp_path):
    exif = Image.Exif()
    exif[0x0110] = 'prompt:{"1": {}}'
    path = save(tmp_path / "a.webp", levels(5), 100, exif=exif, quality=80, method=4)
    assert (video.probe(path).num_frames, greys(video, path, 5, fps=10)[-1]) == (5, 28)


def test_pictures_that_move_are_framed_like_clips(video, tmp_path):
    frames = levels(2)
    for frame in frames:
        frame.paste((255, 255, 255), (0, 0, 32, 48))
    path = save(tmp_path / "a.webp", frames, 100)
    shown, mirrored = (
        video.read(path, fps=10, num_frames=2, width=64, height=48, framing=Framing(flip=flip))
        for flip in (False, True)
    )
    assert (shown[1, 9, 9].tolist(), shown[1, 9, 55].tolist()) == ([255] * 3, [7] * 3)
    np.testing.assert_array_equal(mirrored, shown[:, :, ::-1])


def test_scenes_are_found_in_them_too(video, tmp_path):
    frames = [Image.new("RGB", (64, 48), colour) for colour in ("red",) * 10 + ("blue",) * 10]
    # Equal frames would be written as one.
    for number, frame in enumerate(frames):
        frame.putpixel((number, 0), (number, 0, 0))
    path = save(tmp_path / "a.webp", frames, 100)
    assert video.cuts(path, threshold=27, duration_s=2.0) == pytest.approx([1.0])


# ---- broken and hostile ones ---------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.webp", "a.png", "a.avif"])
@pytest.mark.parametrize("kept", [0.1, 0.5, 0.95])
def test_one_that_is_cut_off_is_named(video, tmp_path, name, kept):
    random = np.random.default_rng(0)
    frames = [Image.fromarray(random.integers(0, 255, (48, 64, 3), np.uint8)) for _ in range(8)]
    path = save(tmp_path / name, frames, 100)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * kept)])
    with pytest.raises(DatasetError, match=re.escape(name)):
        video.probe(path)
    with pytest.raises(DatasetError, match=re.escape(name)):
        video.read(path, fps=10, num_frames=8, width=32, height=32)
    assert video.probe(save(tmp_path / f"whole_{name}", frames, 100)).num_frames == 8, "the next one is read"


def chunk(kind: bytes, data: bytes, length: int | None = None) -> bytes:
    return kind + struct.pack("<I", len(data) if length is None else length) + data + b"\0" * (len(data) % 2)


def webp(path: Path, frames: int, size: int = 64, duration: int = 100, **claims) -> Path:
    """An animation whose frames hold nothing."""
    side = (size - 1).to_bytes(3, "little")
    frame = chunk(b"ANMF", b"\0" * 6 + side * 2 + duration.to_bytes(3, "little") + b"\0", **claims)
    body = b"WEBP" + chunk(b"VP8X", b"\2\0\0\0" + side * 2) + chunk(b"ANIM", b"\0" * 6) + frame * frames
    path.write_bytes(b"RIFF" + struct.pack("<I", len(body)) + body)
    return path


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ({"frames": 200_001}, "has more than 200000 frames. Cut it into clips"),
        ({"frames": 2, "size": 16_384}, "has 16384x16384 pixels. Scale it down"),
        ({"frames": 2, "duration": 0}, "gives all its frames the same timestamp"),
        ({"frames": 2, "length": 1 << 31}, "is cut off"),
        ({"frames": 2}, "cannot be read as a still"),
    ],
)
def test_an_animation_that_states_nonsense_is_refused_before_it_is_decoded(video, tmp_path, made, said):
    with pytest.raises(DatasetError, match=rf"a\.webp {said}"):
        video.probe(webp(tmp_path / "a.webp", **made))


def test_an_animated_png_that_lacks_frames_is_named(video, tmp_path):
    path = save(tmp_path / "a.png", levels(3), 100)
    data = path.read_bytes()
    at = data.index(b"acTL") + 4
    path.write_bytes(data[:at] + struct.pack(">I", 9) + data[at + 4 :])
    with pytest.raises(DatasetError, match=r"a\.png is cut off or damaged: it states 9 frames and holds 3"):
        video.probe(path)


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of another process is read from /proc")
def test_a_long_one_is_never_held_as_a_whole(tmp_path):
    frames = [Image.new("L", (512, 512), number) for number in range(150)]
    path = save(tmp_path / "long.png", frames, 100, compress_level=1)
    with VideoProcess() as video:
        video.probe(save(tmp_path / "short.png", levels(2), 100))

        def peak() -> int:
            status = Path(f"/proc/{video.pid}/status").read_text()
            return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) >> 10  # type: ignore[index]

        before = peak()
        assert video.probe(path).num_frames == 150
        frame = video.read(path, fps=10, num_frames=1, width=32, height=32, start_s=14.85)
        assert frame.max() == 148
        assert peak() - before < 40, "MiB; all frames would take 112"
