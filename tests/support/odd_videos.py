"""Odd and broken media files, made on the fly: each maker writes one file into a folder and returns nothing.

Unless its name says otherwise, a clip is 64 x 48, 20 frames at 16 a second, frame k at the grey level 8 * k.
"""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from PIL import Image

Maker = Callable[[Path], None]


def grey(count: int = 20, width: int = 64, height: int = 48) -> list[np.ndarray]:
    """Frame k at the level 8 * k."""
    return [np.full((height, width, 3), 8 * k % 256, np.uint8) for k in range(count)]


def write_clip(
    path: Path,
    pictures: Iterable[np.ndarray] | None = None,
    *,
    codec: str = "libx264",
    pix_fmt: str = "yuv420p",
    fps: float = 16,
    times_ms: Sequence[int] | None = None,
    options: dict[str, str] | None = None,
    muxer: str | None = None,
    muxer_options: dict[str, str] | None = None,
    rotation: int = 0,
    transfer: int = 0,
    sound: bool = False,
    alpha_mode: bool = False,
) -> None:
    """A clip through PyAV."""
    frames = list(grey(20 if times_ms is None else len(times_ms)) if pictures is None else pictures)
    with av.open(str(path), "w", format=muxer, options=muxer_options or {}) as container:
        stream: Any = container.add_stream(codec, rate=Fraction(fps).limit_denominator(100_000))
        stream.height, stream.width = frames[0].shape[:2]
        stream.pix_fmt, stream.options = pix_fmt, options or {}
        if times_ms is not None:
            stream.codec_context.time_base = Fraction(1, 1000)
        if transfer:
            stream.codec_context.color_trc = transfer
        if alpha_mode:  # what tells players of VP9 that there is transparency
            stream.metadata["alpha_mode"] = "1"
        if rotation:
            stream.set_display_rotation(rotation)
        voice = container.add_stream("aac", rate=44100) if sound else None
        for number, picture in enumerate(frames):
            layout = "rgba" if picture.shape[2] == 4 else "rgb24"
            frame = av.VideoFrame.from_ndarray(picture, format=layout).reformat(format=pix_fmt)
            if times_ms is not None:
                frame.pts, frame.time_base = times_ms[number], Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
        if voice is not None:
            write_sound(container, voice, 40)


def write_sound(container: Any, stream: Any, blocks: int) -> None:
    """Silence, 1024 samples a block."""
    for _ in range(blocks):
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), "fltp", "mono")
        frame.sample_rate = 44100
        container.mux(stream.encode(frame))
    container.mux(stream.encode())


def sound_only(path: Path, muxer: str | None = None) -> None:
    with av.open(str(path), "w", format=muxer) as container:
        write_sound(container, container.add_stream("aac", rate=44100), 20)


def cover_only(path: Path) -> None:
    """Music with a cover picture, as music shops sell it: the picture is a video stream of one frame."""
    from av.stream import Disposition

    cover = path.with_suffix(".cover.mkv")
    write_clip(cover, grey(1), codec="mjpeg", pix_fmt="yuvj420p")
    with av.open(str(cover)) as source, av.open(str(path), "w") as container:
        voice = container.add_stream("aac", rate=44100)
        picture = container.add_stream_from_template(source.streams.video[0])
        picture.disposition = Disposition.attached_pic
        for packet in source.demux(video=0):
            if packet.dts is not None:
                packet.stream = picture
                container.mux(packet)
        write_sound(container, voice, 20)
    cover.unlink()


def noisy(count: int = 20) -> list[np.ndarray]:
    """Frames that do not compress to nothing, so that cuts and damage fall inside them."""
    draw = np.random.default_rng(0)
    return [draw.integers(0, 255, (48, 64, 3), np.uint8) for _ in range(count)]


def edited(make: Maker, edit: Callable[[bytes], bytes]) -> Maker:
    """The file of `make`, with its bytes changed."""

    def maker(path: Path) -> None:
        make(path)
        path.write_bytes(edit(path.read_bytes()))

    return maker


def truncated(share: float, **clip: Any) -> Maker:
    return edited(lambda path: write_clip(path, noisy(), **clip), lambda data: data[: int(len(data) * share)])


def content(data: bytes) -> Maker:
    return lambda path: path.write_bytes(data) and None


def patched(make: Maker, old: bytes, new: bytes) -> Maker:
    def edit(data: bytes) -> bytes:
        assert old in data, old
        return data.replace(old, new)

    return edited(make, edit)


def huge_box(path: Path) -> None:
    """An mp4 whose index claims three gigabytes."""
    brand = struct.pack(">I4s4sI4s", 20, b"ftyp", b"isom", 512, b"isom")
    path.write_bytes(brand + struct.pack(">I4s", 0xC0000000, b"moov") + bytes(5000))


def many_boxes(path: Path) -> None:
    """A hundred thousand nested boxes."""
    depth = 100_000
    boxes = b"".join(struct.pack(">I4s", 8 * (depth - number), b"moov") for number in range(depth))
    path.write_bytes(struct.pack(">I4s4sI4s", 20, b"ftyp", b"isom", 512, b"isom") + boxes)


def two_sizes(path: Path) -> None:
    """Motion JPEG whose size changes on the way."""
    small, large = path.with_suffix(".a.mkv"), path.with_suffix(".b.mkv")
    write_clip(small, grey(10), codec="mjpeg", pix_fmt="yuvj420p")
    write_clip(large, grey(20, 128, 96)[10:], codec="mjpeg", pix_fmt="yuvj420p")
    with av.open(str(small)) as first, av.open(str(large)) as second, av.open(str(path), "w") as container:
        stream = container.add_stream_from_template(first.streams.video[0])
        for source, shift_ms in ((first, 0), (second, 625)):
            for packet in source.demux(video=0):
                if packet.dts is None:
                    continue
                packet.pts, packet.dts = packet.pts + shift_ms, packet.dts + shift_ms
                packet.stream = stream
                container.mux(packet)
    small.unlink()
    large.unlink()


def without_key_frame(path: Path) -> None:
    """Only the frames after the first: nothing they lean on is there."""
    whole = path.with_suffix(".whole.mkv")
    write_clip(whole, noisy(), options={"g": "100", "bf": "0"})
    with av.open(str(whole)) as source, av.open(str(path), "w") as container:
        stream = container.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(video=0):
            if packet.dts is not None and packet.pts > 0:
                packet.stream = stream
                container.mux(packet)
    whole.unlink()


def without_times(path: Path) -> None:
    """Every frame at the time 0."""
    whole = path.with_suffix(".whole.mkv")
    write_clip(whole, grey(), codec="ffv1")
    with av.open(str(whole)) as source, av.open(str(path), "w") as container:
        stream = container.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(video=0):
            if packet.dts is not None:
                packet.pts = packet.dts = packet.duration = 0
                packet.stream = stream
                container.mux(packet)
    whole.unlink()


def still(path: Path, kind: str) -> None:
    with path.open("wb") as file:
        Image.new("RGB", (64, 48), (90, 90, 90)).save(file, kind)


def random_bytes(count: int) -> bytes:
    return random.Random(0).randbytes(count)


def loop(path: Path) -> None:
    other = path.with_name("other_end_of_" + path.name)
    path.symlink_to(other)
    other.symlink_to(path)


def link_to(target: str) -> Maker:
    return lambda path: path.symlink_to(target)


def pipe(path: Path) -> None:
    getattr(os, "mkfifo")(path)  # noqa: B009  POSIX only


def enormous(path: Path) -> None:
    """A grey second at the most pixels that are read: 8192 x 4320."""
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("libx264", rate=1)
        stream.width, stream.height, stream.pix_fmt = 8192, 4320, "yuv420p"
        stream.options = {"preset": "ultrafast"}
        frame = av.VideoFrame(8192, 4320, "yuv420p")
        for plane, level in zip(frame.planes, (126, 128, 128), strict=True):
            plane.update(bytes([level]) * plane.buffer_size)
        container.mux(stream.encode(frame))
        container.mux(stream.encode())


def with_alpha(count: int = 20) -> list[np.ndarray]:
    """Frames whose left quarter is transparent."""
    cover = np.full((48, 64), 255, np.uint8)
    cover[:, :16] = 0
    return [np.dstack([picture, cover]) for picture in grey(count)]
