"""The contact sheet: the first frame of each file as a thumbnail, and one picture of thumbnails with names."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Iterable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DatasetError
from ..files import FileError, atomic_write_bytes, open_regular
from ..video import VideoProcess
from .sample import Dataset, Sample, one_per_clip

_CELL_WIDTH, _CELL_HEIGHT, _TEXT_HEIGHT = 160, 120, 16
_COLUMNS = 6
_MAX_CELLS = 48
_THUMBNAIL_BYTES = 1 << 20
_DRAWING_S = 20.0
"""seconds after which the thumbnails of a large folder are left to the next scan"""


def sheet_samples(dataset: Dataset) -> list[Sample]:
    """Returns the sample of each cell, row by row; excluded files come last."""
    excluded = (sample for part in dataset.parts for sample in part.excluded)
    return [sample for sample in (*dataset.samples, *excluded) if sample.turn == 0][:_MAX_CELLS]


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


class Thumbnails:
    """The first frames of samples as JPEG, which fit a cell; kept in a folder, if one is given."""

    def __init__(self, video: VideoProcess, folder: Path | None = None) -> None:
        self._video, self._folder = video, folder

    def place_of(self, sample: Sample) -> Path | None:
        """Returns the file of a thumbnail, which need not exist; None without a folder."""
        if self._folder is None:
            return None
        shown = repr((str(sample.path), sample.mark, sample.cut.start_s, sample.cut.framing, sample.bucket))
        name = hashlib.sha256(shown.encode("utf-8", "surrogatepass")).hexdigest()
        return self._folder / name[:2] / f"{name}.jpg"

    def jpeg(self, sample: Sample) -> bytes:
        """Returns the thumbnail of a sample; a grey one if its file cannot be read."""
        from PIL import Image

        place = self.place_of(sample)
        if place is not None:
            with contextlib.suppress(FileError, OSError), open_regular(place) as file:
                return file.read(_THUMBNAIL_BYTES)
        scale, data = min(_CELL_WIDTH / sample.bucket.width, _CELL_HEIGHT / sample.bucket.height), BytesIO()
        try:
            (picture,) = self._video.read(
                sample.path,
                fps=16,
                num_frames=1,
                width=max(1, round(sample.bucket.width * scale)),
                height=max(1, round(sample.bucket.height * scale)),
                start_s=sample.cut.start_s,
                framing=sample.cut.framing.at_scale(scale),
            )
        except DatasetError:
            Image.new("RGB", (_CELL_WIDTH, _CELL_HEIGHT), (90, 90, 90)).save(data, "JPEG")
            return data.getvalue()
        Image.fromarray(picture).save(data, "JPEG", quality=85)
        if place is not None:
            with contextlib.suppress(FileError, OSError):  # it only saves time
                atomic_write_bytes(place, data.getvalue(), self._folder)
        return data.getvalue()

    def draw(self, samples: Iterable[Sample]) -> None:
        """Make the missing thumbnails of files; stops after `_DRAWING_S`."""
        end_s = time.monotonic() + _DRAWING_S
        for sample in one_per_clip(samples):
            if time.monotonic() > end_s:
                return
            if (place := self.place_of(sample)) is not None and not place.is_file():
                self.jpeg(sample)


def contact_sheet(dataset: Dataset, thumbnails: Thumbnails) -> NDArray[np.uint8]:
    """Returns (H, W, 3) RGB: the first frame of the first 48 files, with names; grey for unreadable files."""
    from PIL import Image, ImageDraw

    samples, layout = sheet_samples(dataset), sheet_layout(dataset)
    columns, rows = layout["columns"], layout["rows"]
    row_height = _CELL_HEIGHT + _TEXT_HEIGHT
    sheet = Image.new("RGB", (columns * _CELL_WIDTH, rows * row_height), (24, 24, 24))
    draw: Any = ImageDraw.Draw(sheet)
    for number, sample in enumerate(samples):
        left, top = number % columns * _CELL_WIDTH, number // columns * row_height
        with Image.open(BytesIO(thumbnails.jpeg(sample)), formats=("JPEG",)) as thumbnail:
            inset = ((_CELL_WIDTH - thumbnail.width) // 2, (_CELL_HEIGHT - thumbnail.height) // 2)
            sheet.paste(thumbnail, (left + inset[0], top + inset[1]))
        # Pillow's built-in font has few characters besides ASCII.
        name = sample.name.encode("ascii", "replace").decode()
        label = name if len(name) <= 24 else f"{name[:14]}..{name[-8:]}"
        draw.text((left + 4, top + _CELL_HEIGHT + 2), label, fill=(220, 220, 220))
    return np.asarray(sheet, np.uint8)
