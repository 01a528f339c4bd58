"""The contact sheet: one picture with the first frame and the name of each file of a dataset."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DatasetError
from ..video import Framing, VideoProcess
from .sample import Dataset, Sample

_CELL_WIDTH, _CELL_HEIGHT, _TEXT_HEIGHT = 160, 120, 16
_COLUMNS = 6
_MAX_CELLS = 48


def sheet_samples(dataset: Dataset) -> list[Sample]:
    """Returns the sample of each cell, row by row."""
    return [sample for sample in dataset.samples if sample.turn == 0][:_MAX_CELLS]


def sheet_layout(dataset: Dataset) -> dict[str, int]:
    """Returns the numbers of columns and rows, and the width, height and name height of a cell in pixels."""
    cells = len(sheet_samples(dataset))
    columns = min(_COLUMNS, cells)
    return {
        "columns": columns,
        "rows": -(-cells // columns),
        "cell_width": _CELL_WIDTH,
        "cell_height": _CELL_HEIGHT,
        "name_height": _TEXT_HEIGHT,
    }


def contact_sheet(dataset: Dataset, video: VideoProcess) -> NDArray[np.uint8]:
    """Returns (H, W, 3) RGB: the first frame of the first 48 files, with names; grey for unreadable files."""
    from PIL import Image, ImageDraw

    samples, layout = sheet_samples(dataset), sheet_layout(dataset)
    columns, rows = layout["columns"], layout["rows"]
    row_height = _CELL_HEIGHT + _TEXT_HEIGHT
    sheet = Image.new("RGB", (columns * _CELL_WIDTH, rows * row_height), (24, 24, 24))
    draw: Any = ImageDraw.Draw(sheet)
    for number, sample in enumerate(samples):
        left, top = number % columns * _CELL_WIDTH, number // columns * row_height
        thumbnail = Image.fromarray(_thumbnail(sample, video))
        inset = ((_CELL_WIDTH - thumbnail.width) // 2, (_CELL_HEIGHT - thumbnail.height) // 2)
        sheet.paste(thumbnail, (left + inset[0], top + inset[1]))
        # Pillow's built-in font has few characters besides ASCII.
        name = sample.name.encode("ascii", "replace").decode()
        label = name if len(name) <= 24 else f"{name[:14]}..{name[-8:]}"
        draw.text((left + 4, top + _CELL_HEIGHT + 2), label, fill=(220, 220, 220))
    return np.asarray(sheet, np.uint8)


def _thumbnail(sample: Sample, video: VideoProcess) -> NDArray[np.uint8]:
    scale = min(_CELL_WIDTH / sample.bucket.width, _CELL_HEIGHT / sample.bucket.height)
    width = max(1, round(sample.bucket.width * scale))
    height = max(1, round(sample.bucket.height * scale))
    try:
        return video.read(
            sample.path,
            fps=16,
            num_frames=1,
            width=width,
            height=height,
            start_s=sample.cut.start_s,
            framing=Framing(flip=sample.cut.framing.flip),
        )[0]
    except DatasetError:
        return np.full((height, width, 3), 90, np.uint8)
