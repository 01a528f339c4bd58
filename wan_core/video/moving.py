"""Frames with their times: those of a video through PyAV, of a picture with several frames through Pillow."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path

from .animations import animation_of
from .frames import TimedFrame, timed_frames
from .picture import pixel_ratio
from .sources import open_clip

PICTURE_TICK_S = 1e-3
"""Writers of pictures that move round times to milliseconds."""


@dataclass(frozen=True, kw_only=True)
class Moving:
    """An open file."""

    frames: Callable[[float], Iterator[TimedFrame]]
    """from a second on; to be asked once"""
    tick_s: float
    """what times are rounded to"""
    rate: float
    """frames per second on average; 0 where that is not known"""
    pixel_ratio: float = 1.0


@contextlib.contextmanager
def open_moving(path: Path) -> Generator[Moving]:
    """The frames of a clip; DatasetError for what cannot be read, also while they are taken."""
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
