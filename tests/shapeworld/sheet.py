"""Contact sheets: clips as strips of frames, so that a picture shows what moves and where to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from .files import Frames

EDGE = 56  # pixels of a frame
GAP = 2
MARGIN = 10
LETTERS = 13
PAPER, INK, GREY = (255, 255, 255), (20, 20, 20), (120, 120, 120)


@dataclass(frozen=True)
class Strip:
    """One clip, (T, H, W, 3) uint8, and what stands left of it."""

    label: str
    frames: Frames


def contact_sheet(title: str, groups: Sequence[Sequence[Strip]], columns: int = 2, every: int = 1) -> Image.Image:
    """Groups side by side in `columns`, the strips of a group below each other. Every `every`-th frame is shown."""
    font = ImageFont.load_default(LETTERS)
    labels = max((int(font.getlength(strip.label)) for group in groups for strip in group), default=0) + MARGIN
    shown = max((len(strip.frames[::every]) for group in groups for strip in group), default=0)
    height_of = max((len(group) for group in groups), default=0) * (EDGE + GAP) + MARGIN
    width_of = labels + shown * (EDGE + GAP) + MARGIN
    columns = max(1, min(columns, len(groups)))
    rows = -(-len(groups) // columns)
    top = MARGIN + 2 * LETTERS
    width = max(MARGIN + columns * width_of, 2 * MARGIN + int(font.getlength(title)))
    sheet = Image.new("RGB", (width, top + rows * height_of), PAPER)
    pen = ImageDraw.Draw(sheet)
    pen.text((MARGIN, MARGIN), title, INK, font)
    for number, group in enumerate(groups):
        row, column = divmod(number, columns)
        for line, strip in enumerate(group):
            x, y = MARGIN + column * width_of, top + row * height_of + line * (EDGE + GAP)
            pen.text((x, y + EDGE // 2 - LETTERS // 2), strip.label, GREY if line < len(group) - 1 else INK, font)
            for place, frame in enumerate(strip.frames[::every]):
                picture = Image.fromarray(frame).resize((EDGE, EDGE), Image.Resampling.LANCZOS)
                sheet.paste(picture, (x + labels + place * (EDGE + GAP), y))
    return sheet


def save_sheet(sheet: Image.Image, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    sheet.save(file, quality=90)
