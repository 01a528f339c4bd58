"""Converts a decoded frame to a picture: rotation, square pixels, opaque, scaled and cropped."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from .clip_measures import LOOK_SIZE
from .colours import opaque, to_rgb
from .messages import Framing, covered_size
from .sources import MAX_PIXELS

if TYPE_CHECKING:
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

_SQUARE = 0.03
"""deviation from 1 up to which pixels count as square, so that 16:9 scaled to 832x480 (pixels of 40:39) is not
resampled"""


@dataclass(frozen=True)
class Orientation:
    """The display of a stored picture: rotated counter-clockwise by `quarters` times 90 degrees, then mirrored."""

    quarters: int = 0
    mirrored: bool = False

    def apply(self, picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Returns the picture (H, W, ...) as displayed."""
        turned = np.rot90(picture, self.quarters)
        return turned[:, ::-1] if self.mirrored else turned


def orientation_of(frame: VideoFrame) -> Orientation:
    """Returns the rotation (to the nearest quarter) and mirroring of the frame's display matrix."""
    from av.sidedata.sidedata import Type

    found = cast("Any", frame.side_data).get(Type.DISPLAYMATRIX)
    if found is None:
        return Orientation()
    # A stored point (x, y), with y down, is displayed at (a x + c y, b x + d y), up to a shift. A negative determinant
    # means mirroring.
    a, b, _, c, d = struct.unpack("=5i", bytes(found)[:20])
    mirrored = a * d - b * c < 0
    if mirrored:  # The mirroring, which the display applies after the rotation, is undone first.
        a, c = -a, -c
    if abs(a) + abs(d) >= abs(b) + abs(c):
        return Orientation(2 if a + d < 0 else 0, mirrored)
    return Orientation(1 if c - b > 0 else 3, mirrored)


def pixel_ratio(stream: VideoStream) -> float:
    """Returns width / height of a pixel; 1 if nearly square or implausible."""
    ratio = float(stream.sample_aspect_ratio or 1)
    return ratio if 0.1 < ratio < 10 and abs(ratio - 1) >= _SQUARE else 1.0


def shown_size(frame: VideoFrame, ratio: float) -> tuple[int, int]:
    """Returns width and height as displayed."""
    width, height = max(1, round(frame.width * ratio)), frame.height
    return (height, width) if orientation_of(frame).quarters % 2 else (width, height)


def fit(frame: VideoFrame, ratio: float, wanted: tuple[int, int], framing: Framing) -> NDArray[np.uint8]:
    """Returns (H, W, 3) RGB of size `wanted` (width, height): rotated, scaled to cover that size, cropped by
    `framing`."""
    orientation, source = orientation_of(frame), shown_size(frame, ratio)
    frame = opaque(frame)
    scaled = source if framing.native else covered_size(source, wanted)
    if scaled[0] * scaled[1] > MAX_PIXELS:
        frame, source = _cut_strip(frame, ratio, orientation, wanted, framing)
        scaled, framing, orientation = wanted, replace(framing, offset=None), Orientation()
    shrinks = not framing.native and max(wanted[0] / source[0], wanted[1] / source[1]) < 1
    stored = (scaled[1], scaled[0]) if orientation.quarters % 2 else scaled
    turned = orientation.apply(to_rgb(frame, stored, shrinks=shrinks))
    left, top = framing.place(scaled, wanted)
    picture = turned[top : top + wanted[1], left : left + wanted[0]]
    return picture[:, ::-1] if framing.flip else picture


def small_grey(frame: VideoFrame) -> NDArray[np.uint8]:
    """Returns (32, 32) grey levels of the complete picture, rotated."""
    from av.video.reformatter import Interpolation

    size = {"width": LOOK_SIZE, "height": LOOK_SIZE}
    grey = frame.reformat(**size, format="gray", interpolation=Interpolation.AREA, threads=1).to_ndarray()
    return orientation_of(frame).apply(np.asarray(grey, np.uint8))


def _cut_strip(
    frame: VideoFrame, ratio: float, orientation: Orientation, wanted: tuple[int, int], framing: Framing
) -> tuple[VideoFrame, tuple[int, int]]:
    """Returns the visible part of a very long, narrow frame, rotated, and its size.

    Scaling a complete frame of 16 x 8192 pixels would take more than a gigabyte.
    """
    from av.video.frame import VideoFrame

    upright = max(1, round(frame.width * ratio)), frame.height
    turned = orientation.apply(to_rgb(frame, upright, shrinks=False))
    height, width = turned.shape[:2]
    scaled = covered_size((width, height), wanted)
    left, top = framing.place(scaled, wanted)
    first = left * width // scaled[0], top * height // scaled[1]
    size = max(1, round(wanted[0] * width / scaled[0])), max(1, round(wanted[1] * height / scaled[1]))
    part = turned[first[1] : first[1] + size[1], first[0] : first[0] + size[0]]
    return VideoFrame.from_ndarray(np.ascontiguousarray(part), format="rgb24"), (part.shape[1], part.shape[0])
