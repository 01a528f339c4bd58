"""MPEG, transport streams, Windows Media, Flash and phones of old: read to the frame, or refused by name."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.support.pyavs import INSTALLED, NEWEST, OLDEST
from wan_core.errors import DatasetError
from wan_core.video import VideoProcess

pytestmark = pytest.mark.lasts(0.1)

FPS = 25
FINE = {"g": "12", "qmin": "2", "qmax": "2"}
BFRAMES = {**FINE, "bf": "2"}
KINDS = [
    ("a.mpg", "mpeg1video", BFRAMES),
    ("h264.ts", "libx264", BFRAMES),
    ("a.wmv", "wmv2", FINE),
    ("a.flv", "flv", FINE),
    ("a.3gp", "h263", FINE),
    *(
        pytest.param(*kind, marks=pytest.mark.soak)
        for kind in [
            ("a.mpeg", "mpeg2video", BFRAMES),
            ("a.ts", "mpeg2video", BFRAMES),
            ("a.m2ts", "libx264", BFRAMES),
            ("a.mts", "libx264", BFRAMES),
            ("one.wmv", "wmv1", FINE),
            ("old.wmv", "msmpeg4", FINE),
            ("h264.flv", "libx264", BFRAMES),
            ("mpeg4.3gp", "mpeg4", BFRAMES),
            ("h264.3gp", "libx264", BFRAMES),
        ]
    ),
]


@pytest.fixture(
    scope="module", params=[NEWEST, *(pytest.param(one, marks=pytest.mark.soak) for one in (OLDEST, INSTALLED))]
)
def video(request: pytest.FixtureRequest, child_on: Callable[[str], VideoProcess]) -> VideoProcess:
    return child_on(request.param)


def numbered(count: int) -> list[np.ndarray]:
    """Frames that say their number: its last digit of thirteen in the left half, the others in the right one."""
    frames = [np.empty((144, 176, 3), np.uint8) for _ in range(count)]
    for number, frame in enumerate(frames):
        frame[:, :88], frame[:, 88:] = 24 + 16 * (number % 13), 24 + 16 * (number // 13)
    return frames


def numbers(frames: np.ndarray) -> list[int]:
    left, right = (np.rint((frames[:, :, half].mean((1, 2, 3)) - 24) / 16) for half in (slice(20, 60), slice(116, 156)))
    return [int(one + 13 * other) for one, other in zip(left, right, strict=True)]


@pytest.mark.parametrize(("name", "codec", "options"), KINDS)
def test_every_frame_is_found_at_its_time(
    video: VideoProcess, make_clip: Callable[..., Path], name: str, codec: str, options: dict[str, str]
) -> None:
    path = make_clip(name, codec=codec, options=options, frames=numbered(90), fps=FPS)
    info = video.probe(path)
    width = 192 if codec == "h263" else 176  # its pixels are 12:11
    assert (info.kind, info.width, info.height, info.num_frames) == ("clip", width, 144, 90)
    assert info.fps == pytest.approx(FPS, abs=0.01)
    assert info.duration_s == pytest.approx(90 / FPS, abs=0.002)
    assert (info.variable_rate, info.frames_at(FPS)) == (False, 90)

    def read(count: int, **how: float) -> list[int]:
        return numbers(video.read(path, **{"fps": FPS, "num_frames": count, "width": 176, "height": 144, **how}))

    assert read(90) == list(range(90))
    # Far enough in to be reached by seeking where that is exact.
    assert read(30, start_s=60 / FPS) == list(range(60, 90))
    assert read(5, start_s=85 / FPS) == list(range(85, 90))
    times: list[float] = []
    video.read(path, fps=16, num_frames=8, width=32, height=32, start_s=2.4, times=times)
    assert times == pytest.approx([int((2.4 + k / 16) * FPS + 1e-6) / FPS for k in range(8)], abs=0.002)
    with pytest.raises(DatasetError, match="ends after 90 of 91"):
        read(91)


@pytest.mark.parametrize(("name", "codec", "options"), KINDS)
@pytest.mark.parametrize("kept", [pytest.param(0.4, marks=pytest.mark.soak), 0.8])
def test_one_that_is_cut_is_refused_or_ends_early(
    video: VideoProcess, make_clip: Callable[..., Path], name: str, codec: str, options: dict[str, str], kept: float
) -> None:
    """A stream has no length to compare with: what is left of it is a shorter clip, whose frames are right."""
    path = make_clip(name, codec=codec, options=options, frames=numbered(90), fps=FPS)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * kept)])
    with contextlib.suppress(DatasetError):
        count = video.probe(path).frames_at(FPS)
        found = numbers(video.read(path, fps=FPS, num_frames=count, width=176, height=144))
        whole = count - 2 if name.endswith(("mpg", "mpeg", "ts")) else count
        assert found[:whole] == list(range(whole)), "the last two of a stream may be half there"
        assert count < 90 if whole < count else count >= 90 - 0.25 * FPS, "what states its length is refused"


def test_a_clock_that_jumps_back_is_named(video: VideoProcess, make_clip: Callable[..., Path]) -> None:
    path = make_clip("a.ts", codec="mpeg2video", options=BFRAMES, frames=numbered(30), fps=FPS)
    counted: dict[int, int] = {}
    joined = bytearray(path.read_bytes() * 2)
    for at in range(0, len(joined), 188):  # without a gap in the numbers of its packets
        stream = int.from_bytes(joined[at + 1 : at + 3], "big") & 0x1FFF
        counted[stream] = counted.get(stream, -1) + bool(joined[at + 3] & 0x10)
        joined[at + 3] = joined[at + 3] & 0xF0 | counted[stream] & 0xF
    path.write_bytes(joined)
    with pytest.raises(DatasetError, match=r"a\.ts has times that jump back.*Write it again"):
        video.probe(path)


def test_a_codec_that_was_not_tried_is_named(video: VideoProcess, make_clip: Callable[..., Path]) -> None:
    path = make_clip("a.avi", codec="msmpeg4v2", options={}, frames=numbered(5), fps=FPS)
    with pytest.raises(DatasetError, match="is encoded with msmpeg4v2, which is not supported"):
        video.probe(path)
