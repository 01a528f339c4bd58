"""Measures the shots of a clip while it is decoded once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..footage import SMALL_WIDTH, Luma, Measures, Meter, Rectangle
from .animations import open_moving
from .colours import is_full_range
from .picture import Orientation, orientation_of

if TYPE_CHECKING:
    from av.video.frame import VideoFrame

_TALLEST = 4 * SMALL_WIDTH
"""greatest height of the small picture"""


def measure_footage(path: Path, cuts_s: Sequence[float] = ()) -> list[Measures]:
    """Returns the measures of each shot of a clip: of the stretches between `cuts_s`, ascending, in seconds."""
    from av.video.reformatter import Interpolation, VideoReformatter

    scaler, meter, found = VideoReformatter(), Meter(), list[Measures]()
    starts = [*cuts_s, float("inf")]
    end_s, orientation = 0.0, None
    with open_moving(path) as moving:
        for time_s, duration_s, frame in moving.frames(0.0):
            orientation = orientation or orientation_of(frame)
            while time_s >= starts[len(found)] - 1e-6:
                found.append(meter.result(time_s))
                meter = Meter()
            plane, black = _luma(frame)
            height = min(max(8, round(SMALL_WIDTH * frame.height / frame.width)), _TALLEST)
            small = scaler.reformat(
                frame, width=SMALL_WIDTH, height=height, format="gray", interpolation=Interpolation.AREA, threads=1
            )
            meter.add(Luma(time_s, plane, np.asarray(small.to_ndarray(), np.uint8), black))
            end_s = time_s + (duration_s or 1 / (moving.rate or 25))
    found.append(meter.result(end_s))
    turned = orientation or Orientation()
    return [replace(s, bars=as_shown(s.bars, turned), overlay=as_shown(s.overlay, turned)) for s in found]


def as_shown(place: Rectangle | None, orientation: Orientation) -> Rectangle | None:
    if place is None:
        return None
    left, top, right, bottom = place
    for _ in range(orientation.quarters % 4):  # counter-clockwise: what was at the right is at the top
        left, top, right, bottom = top, round(1 - right, 4), bottom, round(1 - left, 4)
    if orientation.mirrored:
        left, right = round(1 - right, 4), round(1 - left, 4)
    return left, top, right, bottom


def _luma(frame: VideoFrame) -> tuple[NDArray[np.uint8], int]:
    """Returns brightness (H, W) and its level of black: the decoder's own plane where it has one of 8 bits."""
    first = frame.format.components[0]
    if first.is_luma and first.bits == 8 and frame.format.is_planar:
        plane = frame.planes[0]
        lines = np.frombuffer(memoryview(plane), np.uint8).reshape(-1, plane.line_size)
        return lines[: frame.height, : frame.width], 0 if is_full_range(frame) else 16
    return np.asarray(frame.reformat(format="gray", threads=1).to_ndarray(), np.uint8), 0
