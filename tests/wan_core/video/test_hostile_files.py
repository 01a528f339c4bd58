"""Broken and hostile files cost one sentence each: never a hang, a connection or a lost server."""

from __future__ import annotations

import contextlib
import os
import socket
import time

import numpy as np
import pytest
from PIL import Image

from tests.support.pyavs import INSTALLED
from wan_core.errors import DatasetError


@pytest.fixture(scope="module")
def video(child_on):
    return child_on(INSTALLED)


def use(video, path) -> None:
    info = video.probe(path)
    video.read(path, fps=16, num_frames=min(33, info.frames_at(16)), width=64, height=64)


def refusal(video, path) -> str:
    """The sentence a probe or, if that passes, a read refuses the file with; within ten seconds."""
    start = time.monotonic()
    with pytest.raises(DatasetError) as caught:
        use(video, path)
    assert time.monotonic() - start < 10
    assert str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def noise(count: int = 40) -> list[np.ndarray]:
    """Frames that do not compress to nothing, so that cuts fall inside them."""
    random = np.random.default_rng(0)
    return [random.integers(0, 255, (48, 64, 3), np.uint8) for _ in range(count)]


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("cut.mp4", 0.5),
        ("cut.webm", 0.3),
        *(
            pytest.param(name, kept, marks=pytest.mark.soak)
            for name in ("cut.mp4", "cut.webm")
            for kept in (0.02, 0.3, 0.5, 0.8)
            if (name, kept) not in (("cut.mp4", 0.5), ("cut.webm", 0.3))
        ),
    ],
)
def test_a_truncated_clip_is_named(video, make_clip, name, kept):
    codec = "libx264" if name.endswith("mp4") else "libvpx-vp9"
    path = make_clip(name, frames=noise(), codec=codec, container_options={"movflags": "+faststart"})
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * kept)])
    assert name in refusal(video, path)


def test_an_mp4_without_its_index_is_named(video, make_clip):
    path = make_clip("no_index.mp4", frames=noise())
    path.write_bytes(path.read_bytes()[:-2000])
    assert "no_index.mp4 cannot be read as a video" in refusal(video, path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("empty.mp4", b""),
        ("text.mp4", b"hello " * 100),
        ("page.mp4", b"<!DOCTYPE html><html></html>"),
        ("list.mp4", b"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nhttp://127.0.0.1:PORT/a.ts\n"),
        ("concat.mp4", b"ffconcat version 1.0\nfile http://127.0.0.1:PORT/a.mp4\n"),
        ("pointer.mp4", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"),
        ("zeros.mkv", bytes(10_000)),
        ("text.png", b"not a picture"),
        ("short.jpg", b"\xff\xd8\xff\xe0\x00\x10JFIF"),
    ],
)
def test_foreign_content_is_named(video, tmp_path, listener, name, content):
    port, accepted = listener
    (tmp_path / name).write_bytes(content.replace(b"PORT", str(port).encode()))
    assert name in refusal(video, tmp_path / name)
    assert accepted() == 0


@pytest.fixture
def listener():
    """A port on loopback and a function that counts the connections made to it."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(16)
        server.setblocking(False)

        def accepted() -> int:
            time.sleep(0.05)
            count = 0
            while True:
                try:
                    server.accept()[0].close()
                except BlockingIOError:
                    return count
                count += 1

        yield server.getsockname()[1], accepted


@pytest.mark.parametrize(
    "text",
    [
        "http://127.0.0.1:PORT/x.mp4",
        "https://127.0.0.1:PORT/x.mp4",
        "tcp://127.0.0.1:PORT",
        "rtmp://127.0.0.1:PORT/x",
        "concat:http://127.0.0.1:PORT/x.mp4|http://127.0.0.1:PORT/y.mp4",
        "subfile,,start,0,end,9,,:http://127.0.0.1:PORT/x.mp4",
        "async:http://127.0.0.1:PORT/x.mp4",
        "cache:http://127.0.0.1:PORT/x.mp4",
        "pipe:0",
        "data:video/mp4;base64,AAAA",
    ],
)
def test_protocols_in_a_path_never_connect(video, listener, text):
    port, accepted = listener
    refusal(video, text.replace("PORT", str(port)))
    assert accepted() == 0


def test_a_cover_picture_is_not_taken_for_the_clip(video, make_clip, tmp_path):
    import av
    from av.stream import Disposition

    cover = make_clip("cover.mkv", codec="mjpeg", pix_fmt="yuvj420p", num_frames=1, width=32, height=32)
    clip = make_clip("clip.mp4", num_frames=12)
    path = tmp_path / "both.mp4"
    with av.open(str(cover)) as first, av.open(str(clip)) as second, av.open(str(path), "w") as out:
        sources = [first.streams.video[0], second.streams.video[0]]
        streams = [out.add_stream_from_template(source) for source in sources]
        streams[0].disposition = Disposition.attached_pic
        for container, source, stream in zip((first, second), sources, streams, strict=True):
            for packet in container.demux(source):
                if packet.dts is not None:
                    packet.stream = stream
                    out.mux(packet)
    info = video.probe(path)
    assert (info.codec, info.width, info.num_frames) == ("h264", 64, 12)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_named_pipe_is_refused_at_once(video, tmp_path):
    os.mkfifo(tmp_path / "pipe.mp4")
    start = time.monotonic()
    assert "pipe.mp4 is not a regular file" in refusal(video, tmp_path / "pipe.mp4")
    assert time.monotonic() - start < 5, "half of what a probe may take"


def test_a_loop_of_links_is_named(video, tmp_path):
    try:
        (tmp_path / "a.mp4").symlink_to(tmp_path / "b.mp4")
    except OSError:
        pytest.skip("this account may not make links")
    (tmp_path / "b.mp4").symlink_to(tmp_path / "a.mp4")
    assert "a.mp4 cannot be opened" in refusal(video, tmp_path / "a.mp4")


def test_a_folder_called_mp4_is_named(video, tmp_path):
    (tmp_path / "folder.mp4").mkdir()
    assert "folder.mp4" in refusal(video, tmp_path / "folder.mp4")


def test_a_still_called_mp4_and_a_clip_called_png_are_named(video, make_clip, tmp_path):
    Image.new("RGB", (64, 64)).save(tmp_path / "still.png")
    (tmp_path / "still.png").rename(tmp_path / "still.mp4")
    assert "still.mp4" in refusal(video, tmp_path / "still.mp4")
    clip = make_clip("a.mp4").rename(tmp_path / "clip.png")
    assert "clip.png cannot be read as a still" in refusal(video, clip)


def test_sound_without_pictures_is_named(video, tmp_path):
    import av

    path = tmp_path / "sound.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("aac", rate=44100)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 4096), np.float32), "fltp", "mono")
        frame.sample_rate = 44100
        container.mux(stream.encode(frame))
        container.mux(stream.encode())
    assert "sound.mp4 holds no video" in refusal(video, path)


def test_a_pixel_bomb_is_refused_before_it_is_decoded(video, tmp_path):
    import struct
    import zlib

    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    path = tmp_path / "bomb.png"
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b""))
    assert "bomb.png" in refusal(video, path)


def test_control_characters_in_a_name_do_not_reach_the_message(video, tmp_path):
    path = tmp_path / "a\x1b[31m\nb.mp4"
    try:
        path.write_bytes(b"x")
    except OSError:
        pytest.skip("this system refuses the name itself")
    assert "a?[31m?b.mp4" in refusal(video, path)


def test_a_flipped_block_is_refused_or_decoded_but_never_crashes(video, make_clip, tmp_path):
    whole = make_clip("whole.mp4", frames=noise())
    data = whole.read_bytes()
    random = np.random.default_rng(1)
    for number in range(12):
        damaged = bytearray(data)
        place = int(random.integers(0, len(data) - 64))
        damaged[place : place + 64] = random.bytes(64)
        path = tmp_path / f"damaged_{number}.mp4"
        path.write_bytes(damaged)
        with contextlib.suppress(DatasetError):
            use(video, path)
    assert video.probe(whole).num_frames == 40
