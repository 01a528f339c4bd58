"""The canvas of a grid of clips: labels, and the place of each clip."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_BACK, _TEXT, _DIM = (24, 24, 24), (235, 235, 235), (170, 170, 170)
_GAP = 4
_LEAST_TEXT, _MOST_TEXT = 11, 28
_LINES = 3
"""largest number of lines of a label's first paragraph; other paragraphs have one line"""


@dataclass(frozen=True)
class Place:
    """A clip's rectangle in pixels."""

    x: int
    y: int
    width: int
    height: int


@dataclass(frozen=True)
class GridPicture:
    """The canvas with labels, and the places of the clips, row by row."""

    canvas: NDArray[np.uint8]
    """(H, W, 3) RGB, even in height and width"""
    places: tuple[tuple[Place, ...], ...]

    def filled(self, stills: Sequence[Sequence[NDArray[np.uint8]]]) -> NDArray[np.uint8]:
        """Returns (H, W, 3): the canvas with one still (h, w, 3) of each clip."""
        from PIL import Image

        sheet = self.canvas.copy()
        for places, row in zip(self.places, stills, strict=True):
            for place, still in zip(places, row, strict=True):
                scaled = Image.fromarray(still).resize((place.width, place.height), Image.Resampling.LANCZOS)
                sheet[place.y : place.y + place.height, place.x : place.x + place.width] = np.asarray(scaled)
        return sheet


def grid_picture(
    sizes: Sequence[tuple[int, int]], columns: Sequence[str], rows: Sequence[str], *, longest: int
) -> GridPicture:
    """Returns the canvas of a grid with edges of at most `longest` pixels; clips are not enlarged.

    `sizes`: (width, height) of the clips of each row. `columns`, `rows`: labels; their first line is highlighted.
    """
    widest, high = max(width for width, _ in sizes), sum(height for _, height in sizes)
    scale = min(1.0, longest / (len(columns) * (widest + _GAP)), longest / (high + len(sizes) * _GAP))
    found = _drawn(sizes, columns, rows, scale)
    for _ in range(20):  # iterated, because the scale changes the text size, which changes the space for labels
        over = max(found.canvas.shape[:2]) / longest
        if over <= 1:
            break
        scale *= min(0.98, 1 / over)
        found = _drawn(sizes, columns, rows, scale)
    return found


def _drawn(sizes: Sequence[tuple[int, int]], columns: Sequence[str], rows: Sequence[str], scale: float) -> GridPicture:
    from PIL import Image, ImageDraw

    scaled = [(max(2, round(width * scale)), max(2, round(height * scale))) for width, height in sizes]
    cell = max(width for width, _ in scaled)
    lowest = min(height for _, height in scaled)
    size = max(_LEAST_TEXT, min(_MOST_TEXT, cell // 12, lowest // 5))
    text = _Text(size)
    across = [text.lines(label, max(cell, 4 * size)) for label in columns]
    beside = [text.lines(label, max(8 * size, cell)) for label in rows]
    left = max((text.width(line) for label in beside for line, _ in label), default=0)
    left = left + 2 * size if left else _GAP
    step = max(cell, max((text.width(line) for label in across for line, _ in label), default=0)) + _GAP
    top = max(len(label) for label in across) * text.height + size
    heights = [max(height, len(label) * text.height) for (_, height), label in zip(scaled, beside, strict=True)]
    width, height = left + step * len(columns), top + sum(heights) + _GAP * len(heights)
    image = Image.new("RGB", (width + width % 2, height + height % 2), _BACK)
    draw: Any = ImageDraw.Draw(image)
    for number, label in enumerate(across):
        middle = left + number * step + cell // 2
        for line, (words, colour) in enumerate(label):
            place = (max(left + number * step, middle - text.width(words) // 2), size // 2 + line * text.height)
            draw.text(place, words, font=text.font, fill=colour)
    places, y = [], top
    for (one, tall), label, row_height in zip(scaled, beside, heights, strict=True):
        for line, (words, colour) in enumerate(label):
            draw.text((size, y + line * text.height), words, font=text.font, fill=colour)
        places.append(tuple(Place(left + n * step, y, one, tall) for n in range(len(columns))))
        y += row_height + _GAP
    return GridPicture(np.asarray(image, np.uint8), tuple(places))


class _Text:
    """Text in Pillow's built-in font of `size` pixels."""

    def __init__(self, size: int) -> None:
        from PIL import ImageFont

        self.font: Any = ImageFont.load_default(size)
        self.height = round(1.3 * size)

    def width(self, words: str) -> int:
        return int(self.font.getlength(words)) + 1

    def lines(self, label: str, room: int) -> list[tuple[str, tuple[int, int, int]]]:
        """Returns a label wrapped to about `room`, each line with its colour; overflow ends in dots."""
        first, *others = label.split("\n")
        most = max(8, room // self.width("n"))
        wrapped = textwrap.wrap(first, most, max_lines=_LINES, placeholder=" ...")
        cut = (line if len(line) <= most else f"{line[: most - 3]}..." for line in others if line)
        return [(line, _TEXT) for line in wrapped] + [(line, _DIM) for line in cut]


def readable(label: str) -> bool:
    """Returns whether Pillow's built-in font has all characters of a label; it has Latin letters."""
    return all(character.isprintable() and ord(character) < 0x180 for character in label)
