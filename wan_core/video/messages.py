"""Facts of media files that parent and child exchange, and the rectangle of a source that becomes the picture.

Standard library only, because both sides import it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class ClipInfo:
    """The facts of a media file, as a viewer sees it: turned, and with square pixels."""

    kind: str
    """"clip" or "still" """
    width: int
    """pixels"""
    height: int
    """pixels"""
    num_frames: int = 1
    """frames in the file"""
    fps: float = 0.0
    """average over the file; 0 for a still"""
    duration_s: float = 0.0
    """from the first frame until the last one ends"""
    variable_rate: bool = False
    """True when the frames are not evenly spaced"""
    rotation: int = 0
    """degrees counter-clockwise that were applied"""
    mirrored: bool = False
    """True when it was mirrored left to right after that, as files of front cameras ask for"""
    codec: str = ""
    bits: int = 8
    """of one colour value; more than 8 is rounded to 8 when it is read"""
    interlaced: bool = False
    """True when each frame is woven from two moments"""
    pixel_ratio: float = 1.0
    """how much wider than high a stored pixel is; `width` has taken it into account"""
    more_pages: bool = False
    """True for a still of which only the first page is read"""
    look: str = field(default="", compare=False)
    """`looks.look_of` the first frame; "" where it was not decoded or is of one colour"""

    def frames_at(self, fps: float) -> int:
        """Returns how many frames the file gives at `fps`: every k whose time k / fps falls inside it."""
        if self.kind == "still":
            return 1
        return max(1, math.ceil(self.duration_s * fps - 1e-3))


@dataclass(frozen=True, kw_only=True)
class Framing:
    """The way a turned source is brought to a size: by default scaled to cover it and cropped around the centre."""

    offset: tuple[int, int] | None = None
    """pixels cut off at the left and at the top of the scaled source; None cuts both sides alike"""
    native: bool = False
    """True leaves the source unscaled: only its edges are cut off"""
    flip: bool = False
    """True mirrors the cropped picture, left to right"""

    def place(self, source: tuple[int, int], wanted: tuple[int, int]) -> tuple[int, int]:
        """Left and top of the crop (width, height) `wanted` in a scaled source (width, height), always inside it."""
        room = source[0] - wanted[0], source[1] - wanted[1]
        if self.offset is None:
            return room[0] // 2, room[1] // 2
        return min(max(self.offset[0], 0), room[0]), min(max(self.offset[1], 0), room[1])


CENTRED = Framing()


def covered_size(source: tuple[int, int], wanted: tuple[int, int]) -> tuple[int, int]:
    """The smallest (width, height) in the shape of `source` that covers `wanted`, in whole pixels."""
    scale = max(wanted[0] / source[0], wanted[1] / source[1])
    return max(wanted[0], round(source[0] * scale)), max(wanted[1], round(source[1] * scale))
