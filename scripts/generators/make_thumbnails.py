"""Writes the thumbnails of the template browser, workflows/NAME.jpg: a graph's title, card, nodes and a clip of it.

    python scripts/generators/make_thumbnails.py

The files are animated WebP: the page requests the suffix .jpg, and browsers show what a file holds. Words and figures
come from the graph's note; the clips are of the learning tests, a seed of a tiny Wan for each graph. Each file has its
words as its description, by which a test finds an outdated picture.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image, ImageDraw, ImageFont
from PIL.ExifTags import Base

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = ROOT / "workflows"
SIZE = (800, 450)
_WHITE, _GREY, _GREEN = (245, 245, 245), (170, 170, 178), (110, 231, 130)
_CHIP, _OURS = (52, 52, 60), (38, 92, 60)
_STAGES = {
    "LoadWanModel": "Model",
    "Fp8Quantize": "fp8",
    "SplitAcrossGPUs": "2 GPUs",
    "WanVideoDataset": "Clips",
    "WanSaveCaptions": "Captions",
    "CacheLatents": "Cache",
    "TrainLoRA": "Train",
    "ValidateVideo": "Validate",
    "ApplyWanLoRA": "Apply",
    "SaveVideo": "Video",
}
"""nodes that get a chip, in this order"""
_RESULTS = {"image-to-video": "learning_test_i2v", "A14B": "learning_test_pair", "": "learning_test"}
"""word of a title -> picture in docs/images with the result"""
_SEEDS = {"01": 1, "02": 5, "03": 0, "04": 1, "05": 7, "06": 2, "07": 6, "08": 6, "09": 3, "10": 4, "11": 5}
"""number of a graph -> seed in that picture, 0 to 7"""
_COLOURS = {
    "01": ((24, 28, 38), (96, 165, 250)),
    "02": ((20, 32, 26), (74, 222, 128)),
    "03": ((34, 26, 40), (192, 132, 252)),
    "04": ((40, 26, 26), (248, 113, 113)),
    "05": ((20, 34, 38), (34, 211, 238)),
    "06": ((38, 32, 20), (251, 191, 36)),
    "07": ((38, 24, 34), (244, 114, 182)),
    "08": ((30, 30, 33), (212, 212, 216)),
    "09": ((22, 30, 44), (129, 140, 248)),
    "10": ((22, 30, 26), (163, 230, 53)),
    "11": ((36, 30, 24), (251, 146, 60)),
}
"""ground, and the number on it"""
_LEFT, _TOP, _ROW, _FRAME, _PITCH, _FRAMES = (66, 654), 36, 126, 56, 58, 9
"""places of clips in such a picture: two seeds in a row, each with the frames without the LoRA above"""
_SIDE, _MILLISECONDS = 190, 110
"""pixels of a frame in the thumbnail; time of one"""


class Words(NamedTuple):
    """The words of a thumbnail."""

    title: str
    stages: tuple[str, ...]
    card: str
    """required card"""
    result: str
    """picture in docs/images with its clips"""
    number: str
    """first two digits of the file name"""

    def comment(self) -> str:
        """Returns the words as one line."""
        return json.dumps(self, ensure_ascii=True)


def words_of(workflow: dict[str, Any], number: str) -> Words:
    """Returns the words of a graph's thumbnail, from its nodes and its note. `number`: its first two digits."""
    kinds = [node["type"] for node in workflow["nodes"]]
    note, *_ = (node["widgets_values"][0] for node in workflow["nodes"] if node["type"] == "MarkdownNote")
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
    return Words(title, tuple(stages), card, result, number)


def _most(sizes: str) -> int:
    """Returns the most frames in `33 frames 7.7, 49 frames 9.5`; 0 for stills."""
    return max((int(count) for count in re.findall(r"(\d+) frames [\d.]", sizes)), default=0)


def draw(words: Words) -> list[Image.Image]:
    """Returns the frames of the thumbnail (800 x 450)."""
    ground, ink = _COLOURS[words.number]
    out = Image.new("RGB", SIZE, ground)
    pen = ImageDraw.Draw(out)
    y = 18
    for line in _lines(pen, words.title, SIZE[0] - 44, size=38):
        pen.text((22, y), line, _WHITE, ImageFont.load_default(38))
        y += 46
    pen.text((22, y + 8), words.card, _GREEN, ImageFont.load_default(28))
    _chips(pen, words.stages, y + 62)
    top = SIZE[1] - _SIDE - 16
    pen.text((SIZE[0] - 94, top + 60), words.number, ink, ImageFont.load_default(64))
    for column, text in enumerate(("before", "with LoRA")):
        place = (22 + column * (_SIDE + 160), top + _SIDE // 2 - 12)
        pen.text(place, text, (_GREY, _WHITE)[column], ImageFont.load_default(24))
    return [_with_clips(out, words, number, top) for number in range(_FRAMES)]


def _with_clips(out: Image.Image, words: Words, number: int, top: int) -> Image.Image:
    """Returns the thumbnail with one frame of the clips, without the LoRA and with it."""
    out, seed = out.copy(), _SEEDS[words.number]
    x = _LEFT[seed % 2] + number * _PITCH
    with Image.open(ROOT / "docs" / "images" / f"{words.result}.jpg") as picture:
        for column in range(2):
            y = _TOP + seed // 2 * _ROW + column * _PITCH
            frame = picture.convert("RGB").crop((x, y, x + _FRAME, y + _FRAME))
            large = frame.resize((_SIDE, _SIDE), Image.Resampling.LANCZOS)
            out.paste(large, (150 + column * (_SIDE + 160), top))
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


def main() -> None:
    for file in sorted(WORKFLOWS.glob("*.json")):
        words = words_of(json.loads(file.read_text(encoding="utf-8")), file.name[:2])
        first, *others = draw(words)
        described = Image.Exif()
        described[Base.ImageDescription] = words.comment()
        first.save(
            file.with_suffix(".jpg"),
            format="WEBP",
            save_all=True,
            append_images=others,
            duration=_MILLISECONDS,
            loop=0,
            quality=70,
            method=6,
            exif=described,
        )
        print(f"writes {file.with_suffix('.jpg').relative_to(ROOT)}")


if __name__ == "__main__":
    main()
