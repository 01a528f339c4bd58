"""Reads animated WebP, PNG and AVIF with Pillow, one frame at a time. FFmpeg reads GIF, as a video.

Frame durations are read from the chunks of the file without decoding; only AVIF is decoded for them.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from .frames import TimedFrame, timed_frames
from .picture import pixel_ratio
from .sources import MAX_FRAMES, MAX_PIXELS, STILL_SUFFIXES, open_clip, open_media, refuse
from .stills import is_avif_sequence, opaque_still, opened_still

_MAX_BYTES = 1 << 30
"""largest file in bytes, because Pillow reads WebP and AVIF files into memory"""
_PNG, _ACTL, _FCTL, _DATA, _END = b"\x89PNG\r\n\x1a\n", b"acTL", b"fcTL", b"IDAT", b"IEND"
_MOVES = 2
"""the animation flag of a WebP"""
_COPY_AGAIN = "Copy or download it again"


@dataclass(frozen=True, kw_only=True)
class Animation:
    """An animated file, not yet decoded."""

    path: Path
    codec: str
    size: tuple[int, int]
    """width, height"""
    durations_s: tuple[float, ...]
    first: int = 0
    """index of the first frame; 1 if frame 0 is a still for programs that show no animations"""

    def frames(self, start_s: float = 0.0) -> Iterator[TimedFrame]:
        """Yields the frames on screen after `start_s`. DatasetError for a damaged frame."""
        from av.video.frame import VideoFrame

        time_s = 0.0
        with opened_still(self.path) as image:
            for number, duration_s in enumerate(self.durations_s, self.first):
                image.seek(number)
                image.load()
                if time_s + duration_s > start_s:
                    picture = np.ascontiguousarray(opaque_still(image))
                    yield TimedFrame(time_s, duration_s, VideoFrame.from_ndarray(picture, format="rgb24"))
                time_s += duration_s


def animation_of(path: Path) -> Animation | None:
    """Returns the animation in a file with the suffix of a still, by its content; None for a single picture."""
    if path.suffix.lower() not in STILL_SUFFIXES:
        return None
    with open_media(path) as file:
        head = file.read(16)
        if head.startswith(_PNG):
            found = _png(path, file)
        elif head[:4] == b"RIFF" and head[8:12] == b"WEBP":
            found = _webp(path, file, 8 + int.from_bytes(head[4:8], "little"))
        else:
            found = _avif(path) if is_avif_sequence(head) else None
        if found is None or len(found.durations_s) < 2:
            return None
        if os.fstat(file.fileno()).st_size > _MAX_BYTES:
            raise refuse(path, f"is an animation larger than {_MAX_BYTES >> 30} GiB", "Write it as an mp4")
    if found.size[0] * found.size[1] > MAX_PIXELS:
        raise refuse(path, f"has {found.size[0]}x{found.size[1]} pixels", "Scale it down")
    if not sum(found.durations_s):
        raise refuse(path, "gives all its frames the same timestamp", "Write it again with a frame rate")
    return found


def _png(path: Path, file: BinaryIO) -> Animation | None:
    stated, width, height, first = 0, 0, 0, 0
    durations: list[float] = []
    for kind, inside in _chunks(path, file, len(_PNG), os.fstat(file.fileno()).st_size, is_png=True):
        if kind == b"IHDR" and len(inside) >= 8:
            width, height = struct.unpack(">II", inside[:8])
        elif kind == _ACTL and len(inside) >= 4:
            (stated,) = struct.unpack(">I", inside[:4])
        elif kind == _FCTL and len(inside) >= 26:
            numerator, denominator = struct.unpack(">HH", inside[20:24])
            _add(path, durations, numerator / (denominator or 100))  # 0 means 100 in the APNG specification
        elif kind == _DATA and not durations:
            if stated < 2:
                return None
            first = 1
        elif kind == _END:
            break
    if stated > len(durations):
        what = f"is cut off or damaged: it states {stated} frames and holds {len(durations)}"
        raise refuse(path, what, _COPY_AGAIN)
    return Animation(path=path, codec="apng", size=(width, height), durations_s=tuple(durations[:stated]), first=first)


def _webp(path: Path, file: BinaryIO, end: int) -> Animation | None:
    size = (0, 0)
    durations: list[float] = []
    for kind, inside in _chunks(path, file, 12, end, is_png=False):
        if kind == b"VP8X" and len(inside) >= 10:
            if not inside[0] & _MOVES:
                return None
            size = (int.from_bytes(inside[4:7], "little") + 1, int.from_bytes(inside[7:10], "little") + 1)
        elif kind == b"ANMF" and len(inside) >= 16:
            _add(path, durations, int.from_bytes(inside[12:15], "little") / 1000)
        elif not size[0]:
            return None  # a still, because an animation begins with a VP8X chunk
    return Animation(path=path, codec="webp", size=size, durations_s=tuple(durations))


def _avif(path: Path) -> Animation:
    durations: list[float] = []
    with opened_still(path) as image:
        count = int(getattr(image, "n_frames", 1))
        for number in range(count if count > 1 else 0):
            image.seek(number)
            image.load()
            _add(path, durations, float(image.info.get("duration", 0)) / 1000)
        return Animation(path=path, codec="avif", size=image.size, durations_s=tuple(durations))


def _chunks(path: Path, file: BinaryIO, at: int, end: int, *, is_png: bool) -> Iterator[tuple[bytes, bytes]]:
    """Yields kind and first bytes of each chunk; DatasetError for a truncated one."""
    there = os.fstat(file.fileno()).st_size
    while at < end:
        file.seek(at)
        head = file.read(8)
        kind, size = (
            (head[4:], int.from_bytes(head[:4], "big")) if is_png else (head[:4], int.from_bytes(head[4:], "little"))
        )
        yield kind, file.read(min(size, 32))
        at += 8 + size + (4 if is_png else size % 2)
        if len(head) < 8 or at > there:
            raise refuse(path, "is cut off", _COPY_AGAIN)


def _add(path: Path, durations: list[float], duration_s: float) -> None:
    durations.append(duration_s)
    if len(durations) > MAX_FRAMES:
        raise refuse(path, f"has more than {MAX_FRAMES} frames", "Cut it into clips")


PICTURE_TICK_S = 1e-3
"""resolution of times in animated pictures"""


@dataclass(frozen=True, kw_only=True)
class Moving:
    """An open clip."""

    frames: Callable[[float], Iterator[TimedFrame]]
    """function: start in seconds -> frames; can be called once"""
    tick_s: float
    """resolution of the times"""
    rate: float
    """average frames per second; 0 if unknown"""
    pixel_ratio: float = 1.0


@contextlib.contextmanager
def open_moving(path: Path) -> Generator[Moving]:
    """Opens a clip; decoding errors inside the context become DatasetErrors."""
    if found := animation_of(path):
        rate = len(found.durations_s) / sum(found.durations_s)
        yield Moving(frames=found.frames, tick_s=PICTURE_TICK_S, rate=rate)
        return
    with open_clip(path) as (container, stream):
        yield Moving(
            frames=lambda start_s: timed_frames(path, container, stream, start_s),
            tick_s=float(stream.time_base or 0),
            rate=float(stream.average_rate or 0),
            pixel_ratio=pixel_ratio(stream),
        )
