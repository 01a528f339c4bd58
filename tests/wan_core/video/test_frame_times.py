"""Which frames of awkward clips are taken, against times computed by hand. Half a frame is 21 ms at 23.976 fps; the
largest deviation allowed here is 1.5 ms.
"""

from __future__ import annotations

import bisect
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest


def check_times(source: list[Fraction], fps: int, times: list[float], numbers: list[int]) -> None:
    """`source`: when each frame of the file appears, as written. `times` and `numbers`: of the frames read at k / fps.

    By hand, frame k is the last that appears no later than k / fps. Where k / fps falls on such a border, a container
    that rounds times to its tick may put it on either side (1 ms is forgiven, and half a one is rounded); nowhere else.
    """
    for k, (time_s, number) in enumerate(zip(times, numbers, strict=True)):
        wanted = Fraction(k, fps)
        by_hand = bisect.bisect_right(source, wanted) - 1
        on_a_border = min(abs(border - wanted) for border in source) <= Fraction(3, 2000)
        assert number == by_hand or (on_a_border and number == by_hand + 1), f"k = {k}"
        assert abs(time_s - source[number]) <= 0.001, f"k = {k}"


def numbers_of(frames: np.ndarray) -> list[int]:
    return [round(int(frame[24, 32, 1]) / 8) for frame in frames]


@pytest.mark.parametrize(
    ("name", "fps"),
    [
        *(("a.mp4", 16), ("a.mkv", 24), ("a.mov", 30)),
        *(
            pytest.param(name, fps, marks=pytest.mark.soak)
            for name, fps in (("a.mp4", 24), ("a.mp4", 30), ("a.mkv", 16), ("a.mkv", 30), ("a.mov", 16), ("a.mov", 24))
        ),
    ],
)
def test_a_23_976_clip_gives_the_frames_on_screen(video, make_clip, name, fps):
    rate = Fraction(24000, 1001)
    path = make_clip(name, num_frames=31, fps=float(rate))
    info = video.probe(path)
    assert info.fps == pytest.approx(float(rate), rel=2e-3)  # Matroska rounds the last time to 1 ms
    assert not info.variable_rate
    # 31 frames last 1.2930 s: k = 0 .. ceil(1.2930 * fps) - 1
    count = {16: 21, 24: 32, 30: 39}[fps]
    assert info.frames_at(fps) == count
    times: list[float] = []
    frames = video.read(path, fps=fps, num_frames=count, width=64, height=48, times=times)
    check_times([number / rate for number in range(31)], fps, times, numbers_of(frames))
    if name == "a.mp4" and fps == 16:  # floor(k * 1.4985)
        assert numbers_of(frames) == [0, 1, 2, 4, 5, 7, 8, 10, 11, 13, 14, 16, 17, 19, 20, 22, 23, 25, 26, 28, 29]


VFR_MS = [0, 33, 67, 150, 170, 300, 333, 400, 600, 617, 634, 800, 840, 900, 1000]


@pytest.mark.parametrize("fps", [16, 24, 30])
@pytest.mark.parametrize("name", ["a.mkv", "a.mp4"])
def test_a_variable_rate_clip_gives_the_frames_on_screen(video, make_clip, name, fps):
    path = make_clip(name, times_ms=VFR_MS)
    info = video.probe(path)
    assert info.variable_rate
    times: list[float] = []
    frames = video.read(path, fps=fps, num_frames=fps, width=64, height=48, times=times)  # the first second
    check_times([Fraction(time, 1000) for time in VFR_MS], fps, times, numbers_of(frames))
    if fps == 16:  # 0, 62.5, 125, 187.5, 250, 312.5, 375, 437.5, 500, 562.5, 625, 687.5, 750, 812.5, 875, 937.5 ms
        assert numbers_of(frames) == [0, 1, 2, 4, 4, 5, 6, 7, 7, 7, 9, 10, 10, 11, 12, 13]


def moving_clip(path: Path, codec: str, options: dict[str, str], times_ms: list[int] | None) -> Path:
    """Five seconds of a pan over noise at 25 frames a second: every frame differs everywhere."""
    noise = np.random.default_rng(0).integers(0, 255, (120, 200, 3), np.uint8)
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=25)
        stream.width, stream.height, stream.pix_fmt, stream.options = 96, 64, "yuv420p", options
        if times_ms is not None:
            stream.codec_context.time_base = Fraction(1, 1000)
        for number in range(125):
            part = noise[number % 50 : number % 50 + 64, number % 100 : number % 100 + 96]
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(part), format="rgb24").reformat(format="yuv420p")
            if times_ms is not None:
                frame.pts, frame.time_base = times_ms[number], Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


@pytest.fixture(scope="session")
def moving(tmp_path_factory) -> Path:
    """Where clips lie that each PyAV reads."""
    return tmp_path_factory.mktemp("moving")


UNEVEN_MS = [3000 + 40 * number + 17 * (number % 3) for number in range(125)]


@pytest.mark.parametrize(
    ("name", "codec", "options", "times_ms"),
    [
        ("open.mp4", "libx264", {"g": "30", "bf": "3", "x264-params": "open-gop=1"}, None),
        ("long.mp4", "libx264", {"g": "250", "bf": "3"}, None),
        ("refresh.mp4", "libx264", {"x264-params": "intra-refresh=1:keyint=40:bframes=0"}, None),
        ("open.mkv", "libx265", {"x265-params": "log-level=none:keyint=25:open-gop=1:bframes=4"}, None),
        ("a.webm", "libvpx-vp9", {"g": "30", "deadline": "realtime", "cpu-used": "8", "lag-in-frames": "5"}, None),
        ("b.avi", "libx264", {"bf": "3", "g": "20"}, None),
        ("a.avi", "mpeg4", {"bf": "2", "g": "12"}, None),
        ("late.mp4", "libx264", {"g": "30", "bf": "3"}, UNEVEN_MS),
        ("late.mkv", "libx264", {"g": "30", "bf": "3"}, UNEVEN_MS),
    ],
)
@pytest.mark.soak
def test_a_window_late_in_a_file_is_what_reading_from_the_start_gives(video, moving, name, codec, options, times_ms):
    """Such windows begin at the key frame before them; the same frames must come out, to the last bit."""
    path = moving / name
    if not path.exists():
        moving_clip(path, codec, options, times_ms)
    size = {"fps": 16, "width": 96, "height": 64}
    count = video.probe(path).frames_at(16)
    whole_times: list[float] = []
    whole = video.read(path, **size, num_frames=count, times=whole_times)
    for first in (*range(30, count - 9, 11), count - 9):
        times: list[float] = []
        window = video.read(path, **size, num_frames=9, start_s=first / 16, times=times)
        np.testing.assert_array_equal(window, whole[first : first + 9])
        assert times == pytest.approx(whole_times[first : first + 9], abs=1e-6)
