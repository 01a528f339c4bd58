"""Data that parent and child exchange: the facts of a media file, and the crop of a source. Standard library only."""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class ClipInfo:
    """The facts of a media file; sizes as displayed: rotated, with square pixels."""

    kind: str
    """"clip" or "still" """
    width: int
    height: int
    num_frames: int = 1
    fps: float = 0.0
    """average frame rate; 0 for a still"""

    duration_s: float = 0.0
    """seconds to the end of the last frame"""
    variable_rate: bool = False
    """True if frames are unevenly spaced"""
    rotation: int = 0
    """rotation for display, in degrees counter-clockwise"""

    mirrored: bool = False
    """True if the display is mirrored after the rotation, as by front cameras"""

    codec: str = ""
    bits: int = 8
    """bits per colour value; pictures are rounded to 8 bits on reading"""
    interlaced: bool = False
    """True if a frame combines two fields"""
    pixel_ratio: float = 1.0
    """width / height of a stored pixel; `width` accounts for it"""
    more_pages: bool = False
    """True for a still with unread pages"""
    look: str = field(default="", compare=False)
    """`look_of` the first frame; "" if not decoded, or of one colour"""

    def frames_at(self, fps: float) -> int:
        """Returns the number of frames at `fps`."""
        if self.kind == "still":
            return 1
        # Minus 1e-3, because containers round durations to ticks.
        return max(1, math.ceil(self.duration_s * fps - 1e-3))


@dataclass(frozen=True, kw_only=True)
class Framing:
    """The crop of a rotated source: by default it is scaled to cover the size, and cropped at the centre."""

    offset: tuple[int, int] | None = None
    """pixels cropped at the left and top of the scaled source; None: centred"""
    native: bool = False
    """True crops without scaling"""
    flip: bool = False
    """True mirrors the result horizontally"""

    def place(self, source: tuple[int, int], wanted: tuple[int, int]) -> tuple[int, int]:
        """Returns left and top of the crop `wanted` in a scaled source, both (width, height)."""
        room = source[0] - wanted[0], source[1] - wanted[1]
        if self.offset is None:
            return room[0] // 2, room[1] // 2
        return min(max(self.offset[0], 0), room[0]), min(max(self.offset[1], 0), room[1])

    def at_scale(self, scale: float) -> Framing:
        """Returns the same crop of a picture that is read at another size; scaled, also where this one is native."""
        offset = None if self.offset is None else (round(self.offset[0] * scale), round(self.offset[1] * scale))
        return Framing(offset=offset, flip=self.flip)


CENTRED = Framing()


def covered_size(source: tuple[int, int], wanted: tuple[int, int]) -> tuple[int, int]:
    """Returns the smallest (width, height) with the aspect ratio of `source` that covers `wanted`."""
    scale = max(wanted[0] / source[0], wanted[1] / source[1])
    return max(wanted[0], round(source[0] * scale)), max(wanted[1], round(source[1] * scale))
