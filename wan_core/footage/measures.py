"""The measures of one shot of footage, as plain data: one row of a sheet."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FOOTAGE_VERSION = 2
"""To be increased when measuring changes results: all clips are then measured again."""

Rectangle = tuple[float, float, float, float]
"""left, top, right, bottom as shares of width and height, as displayed"""


@dataclass(frozen=True, kw_only=True)
class Measures:
    """The measures of one shot. Each value is 0 or empty where there is nothing to report."""

    start_s: float = 0.0
    end_s: float = 0.0
    """seconds from the first frame of the file"""

    motion: float = 0.0
    """mean share of the picture that changes within a quarter of a second, 0 to 1"""
    still_start_s: float = 0.0
    still_end_s: float = 0.0
    """seconds without any change at the start and end; both are the complete length of a still shot"""

    repeated: float = 0.0
    """share of frames that repeat the frame before while the picture moves, 0 to 1"""
    flicker: float = 0.0
    """brightness that goes up and down several times a second: its usual deviation from the mean of a second, as a
    share"""
    cuts_s: tuple[float, ...] = ()
    """seconds of hard cuts from the first frame of the file"""
    combed: float = 0.0
    """share of moving frames with the lines of two moments, 0 to 1"""
    pulldown: bool = False
    """True if the combed frames come as two of five: film shown at the rate of television"""
    blur_px: float = 0.0
    """standard deviation in source pixels of the blur of the sharpest edges; 0 if there are none"""

    bars: Rectangle | None = None
    """the picture inside black bars; None without bars"""
    overlay: Rectangle | None = None
    """text or a logo that stays while the picture below it moves; None without, or if too little moves to tell"""
    overlay_share: float = 0.0
    """share of the seconds that can be judged in which the overlay is seen, 0 to 1"""

    @property
    def duration_s(self) -> float:
        """Length of the shot."""
        return self.end_s - self.start_s

    @property
    def still(self) -> bool:
        """Whether nothing moves."""
        return self.still_start_s >= self.duration_s - 1e-3 > 0

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON data."""
        return dataclasses.asdict(self)

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Measures:
        """Returns the measures of `to_dict`, also after a JSON file turned tuples into lists."""
        values: dict[str, Any] = {key: tuple(one) if isinstance(one, list) else one for key, one in data.items()}
        return Measures(**values)
