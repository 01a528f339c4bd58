"""Writes the thumbnails of the template browser, workflows/NAME.jpg: a graph's title, card, nodes and result.

    python scripts/generators/make_thumbnails.py

Words and figures come from the graph's note; the frames are of the learning tests, sampled from a tiny Wan. Each file
has its words as its JPEG comment, by which a test finds an outdated picture.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image, ImageDraw, ImageFont

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = ROOT / "workflows"
SIZE = (800, 450)
_GROUND, _WHITE, _GREY, _GREEN = (24, 24, 27), (245, 245, 245), (170, 170, 178), (110, 231, 130)
_CHIP, _OURS = (52, 52, 60), (38, 92, 60)
_STAGES = {
    "LoadWanModel": "Model",
    "Fp8Quantize": "fp8",
    "SplitAcrossGPUs": "2 GPUs",
    "WanVideoDataset": "Clips",
    "CacheLatents": "Cache",
    "TrainLoRA": "Train",
    "ValidateVideo": "Validate",
    "ApplyWanLoRA": "Apply",
    "SaveVideo": "Video",
}
"""nodes that get a chip, in this order"""
_RESULTS = {"image-to-video": "learning_test_i2v", "A14B": "learning_test_pair", "": "learning_test"}
"""word of a title -> picture in docs/images with the result"""
_ROWS = ((66, 36), (66, 94))
"""left and top of the first seed in such a picture, without and with the LoRA: 9 frames of 56 pixels, 2 apart"""
_FRAME, _PITCH, _FRAMES = 56, 58, 9


class Words(NamedTuple):
    """The words of a thumbnail."""

    title: str
    stages: tuple[str, ...]
    card: str
    """required card"""
    result: str
    """picture in docs/images with its frames"""

    def comment(self) -> str:
        """Returns the words as one line."""
        return json.dumps(self, ensure_ascii=True)


def words_of(workflow: dict[str, Any]) -> Words:
    """Returns the words of a graph's thumbnail, from its nodes and its note."""
    kinds = [node["type"] for node in workflow["nodes"]]
    (note,) = (node["widgets_values"][0] for node in workflow["nodes"] if node["type"] == "MarkdownNote")
    title = note.splitlines()[0].removeprefix("## ")
    stages = [text for kind, text in _STAGES.items() if kind in kinds]
    if "pictures" in title:
        stages = ["Pictures" if text == "Clips" else text for text in stages]
    if alone := re.search(r"\*\*Memory\*\*: (.+?)\.", note):
        card = alone[1]
    else:
        (size,) = re.findall(r"predicted; (\d+x\d+)", note)
        fits = [(int(gib), sizes) for gib, sizes in re.findall(r"^- (\d+) GB card: (.+)$", note, re.MULTILINE)]
        gib, most = max((_most(sizes), -gib) for gib, sizes in fits)[::-1]
        cards = "2 x " if "SplitAcrossGPUs" in kinds else ""
        card = f"from {cards}{-gib} GB: {f'up to {most} frames' if most else 'pictures'} of {size} (predicted)"
    result = next(picture for word, picture in _RESULTS.items() if word in title)
    return Words(title, tuple(stages), card, result)


def _most(sizes: str) -> int:
    """Returns the most frames in `33 frames 7.7, 49 frames 9.5`; 0 for stills."""
    return max((int(count) for count in re.findall(r"(\d+) frames [\d.]", sizes)), default=0)


def draw(words: Words) -> Image.Image:
    """Returns the thumbnail (800 x 450)."""
    out = Image.new("RGB", SIZE, _GROUND)
    pen = ImageDraw.Draw(out)
    y = 18
    for line in _lines(pen, words.title, SIZE[0] - 44, size=38):
        pen.text((22, y), line, _WHITE, ImageFont.load_default(38))
        y += 46
    pen.text((22, y + 8), words.card, _GREEN, ImageFont.load_default(28))
    _chips(pen, words.stages, y + 62)
    _frames(out, pen, words.result)
    return out


def _lines(pen: ImageDraw.ImageDraw, text: str, width: int, size: int) -> list[str]:
    lines, font = [""], ImageFont.load_default(size)
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if pen.textlength(longer, font) <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def _chips(pen: ImageDraw.ImageDraw, stages: tuple[str, ...], y: int) -> None:
    font, x = ImageFont.load_default(25), 22
    for number, text in enumerate(stages):
        if number:
            pen.line((x + 5, y + 23, x + 19, y + 23), _GREY, 3)
            x += 24
        wide = round(pen.textlength(text, font)) + 26
        pen.rounded_rectangle((x, y, x + wide, y + 46), 10, _OURS if text == "Train" else _CHIP)
        pen.text((x + 13, y + 8), text, _WHITE, font)
        x += wide


def _frames(out: Image.Image, pen: ImageDraw.ImageDraw, name: str) -> None:
    """Draws frames of one seed at the bottom: without the LoRA above, with it below."""
    font = ImageFont.load_default(20)
    side, top = 72, SIZE[1] - 2 * 74 - 34
    pen.text((126, SIZE[1] - 30), "a tiny Wan made for the tests, the same seed", _GREY, ImageFont.load_default(18))
    with Image.open(ROOT / "docs" / "images" / f"{name}.jpg") as picture:
        for row, (left, upper) in enumerate(_ROWS):
            y = top + row * 74
            pen.text((22, y + 24), ("before", "with LoRA")[row], (_GREY, _WHITE)[row], font)
            for number in range(_FRAMES):
                x = left + number * _PITCH
                frame = picture.convert("RGB").crop((x, upper, x + _FRAME, upper + _FRAME))
                out.paste(frame.resize((side, side), Image.Resampling.LANCZOS), (126 + number * (side + 2), y))


def main() -> None:
    for file in sorted(WORKFLOWS.glob("*.json")):
        words = words_of(json.loads(file.read_text(encoding="utf-8")))
        draw(words).save(file.with_suffix(".jpg"), quality=88, optimize=True, comment=words.comment().encode())
        print(f"writes {file.with_suffix('.jpg').relative_to(ROOT)}")


if __name__ == "__main__":
    main()
