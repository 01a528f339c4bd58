"""Which rectangle of a source becomes the picture. Standard library only, because both sides import it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CENTRED", "Framing", "covered_size"]


@dataclass(frozen=True, kw_only=True)
class Framing:
    """How a turned source is brought to a wanted size. The defaults: scaled to cover it, cropped around the centre."""

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
