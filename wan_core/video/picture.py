"""Makes a picture of a decoded frame: turned as the file says, square pixels, no transparency, scaled and cropped."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from .colours import opaque, to_rgb
from .look_hash import LOOK_SIZE
from .messages import Framing, covered_size
from .sources import MAX_PIXELS

if TYPE_CHECKING:
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

_SQUARE = 0.03
"""Pixels that differ less from squares are taken as squares: scaling 16:9 to 832x480 leaves 40:39 behind, and to undo
that would resample every frame of a clip that is ready. Crops below 5 % are forgiven too (bucket.py).
"""


@dataclass(frozen=True)
class Orientation:
    """The way a stored picture is shown: turned counter-clockwise by quarters, then mirrored left to right."""

    quarters: int = 0
    mirrored: bool = False

    def apply(self, picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """The picture (H, W, ...) as it is shown."""
        turned = np.rot90(picture, self.quarters)
        return turned[:, ::-1] if self.mirrored else turned


def orientation_of(frame: VideoFrame) -> Orientation:
    """Returns what the frame's display matrix says, to the nearest quarter.

    An angle alone would not tell a mirrored one.
    """
    from av.sidedata.sidedata import Type

    found = cast("Any", frame.side_data).get(Type.DISPLAYMATRIX)
    if found is None:
        return Orientation()
    # A point (x, y) of the stored picture, y down, is shown at (a x + c y, b x + d y), up to a shift.
    a, b, _, c, d = struct.unpack("=5i", bytes(found)[:20])
    mirrored = a * d - b * c < 0
    if mirrored:  # the matrix of the turn alone: undo the mirror, which comes after it
        a, c = -a, -c
    if abs(a) + abs(d) >= abs(b) + abs(c):
        return Orientation(2 if a + d < 0 else 0, mirrored)
    return Orientation(1 if c - b > 0 else 3, mirrored)


def pixel_ratio(stream: VideoStream) -> float:
    """Returns how much wider than high the file says a pixel is; 1 where that is nearly so, or not to be believed."""
    ratio = float(stream.sample_aspect_ratio or 1)
    return ratio if 0.1 < ratio < 10 and abs(ratio - 1) >= _SQUARE else 1.0


def shown_size(frame: VideoFrame, ratio: float) -> tuple[int, int]:
    """Width and height as shown."""
    width, height = max(1, round(frame.width * ratio)), frame.height
    return (height, width) if orientation_of(frame).quarters % 2 else (width, height)


def fit(frame: VideoFrame, ratio: float, wanted: tuple[int, int], framing: Framing) -> NDArray[np.uint8]:
    """(H, W, 3) RGB of size (width, height) `wanted`: turned, scaled to cover it, cropped as `framing` says."""
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
    """(32, 32) grey levels of the whole picture, turned."""
    from av.video.reformatter import Interpolation

    size = {"width": LOOK_SIZE, "height": LOOK_SIZE}
    grey = frame.reformat(**size, format="gray", interpolation=Interpolation.AREA, threads=1).to_ndarray()
    return orientation_of(frame).apply(np.asarray(grey, np.uint8))


def _cut_strip(
    frame: VideoFrame, ratio: float, orientation: Orientation, wanted: tuple[int, int], framing: Framing
) -> tuple[VideoFrame, tuple[int, int]]:
    """The part of a very long, narrow frame that will be seen, as a frame that needs no turning, with its size.

    Scaled to cover `wanted` as a whole, 16 x 8192 pixels would become more than a gigabyte.
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
