"""A scan as text and as a picture, for the dataset node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...errors import DatasetError
from ...video import Framing, VideoProcess
from .caption_report import caption_lines
from .companion_report import companion_lines
from .cut_report import asked_frames, one_per_file, window_lines
from .scan import Sample, ScanResult

if TYPE_CHECKING:
    from .dataset import Dataset

__all__ = ["contact_sheet", "scan_report"]

_CELL_WIDTH, _CELL_HEIGHT, _TEXT_HEIGHT = 160, 120, 16
_COLUMNS = 6
_MAX_CELLS = 48


def scan_report(result: ScanResult) -> str:
    """One fact a line; every rejected file with its reason at the end."""
    config, samples = result.config, one_per_file(result.samples)
    clips = [s for s in samples if s.kind == "clip"]
    stills = len(samples) - len(clips)
    title = config.folder or "dataset"
    lines = [f"{title}: {_count(len(clips), 'clip')}, {_count(stills, 'still')}"]
    if clips:
        lines.append(_frames_line(result, clips))
    lines += window_lines(config, result.samples)
    lines.append("buckets: " + _tally(str(s.bucket) for s in result.samples))
    if any(s.upscaled for s in samples):
        lines.append("enlarged: " + _names(s.name for s in samples if s.upscaled))
    if any(s.info.interlaced for s in samples):
        combed = _names(s.name for s in samples if s.info.interlaced)
        lines.append(f"interlaced, so combs will be learned (ffmpeg -vf yadif removes them): {combed}")
    lines += caption_lines(config, result.samples)
    lines += companion_lines(result)
    if config.num_repeats > 1:
        lines.append(f"repeats: each {config.num_repeats} times in an epoch")
    if config.weight != 1:
        lines.append(f"weight: {config.weight:g}, how often its files are seen beside those of other datasets")
    lines += result.notes
    if result.rejected:
        lines.append(f"not used: {_count(len(result.rejected), 'file')}")
        lines += [f"  {r.name}: {r.reason}" for r in result.rejected]
    return "\n".join(lines)


def contact_sheet(dataset: Dataset, video: VideoProcess) -> NDArray[np.uint8]:
    """(H, W, 3) RGB: the first frame of the first 48 files, with their names; grey where one cannot
    be read.
    """
    from PIL import Image, ImageDraw

    samples = [sample for sample in dataset.samples if sample.turn == 0][:_MAX_CELLS]
    columns = min(_COLUMNS, len(samples))
    rows = -(-len(samples) // columns)
    row_height = _CELL_HEIGHT + _TEXT_HEIGHT
    sheet = Image.new("RGB", (columns * _CELL_WIDTH, rows * row_height), (24, 24, 24))
    draw: Any = ImageDraw.Draw(sheet)
    for number, sample in enumerate(samples):
        left, top = number % columns * _CELL_WIDTH, number // columns * row_height
        thumbnail = Image.fromarray(_thumbnail(sample, video))
        inset = ((_CELL_WIDTH - thumbnail.width) // 2, (_CELL_HEIGHT - thumbnail.height) // 2)
        sheet.paste(thumbnail, (left + inset[0], top + inset[1]))
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


def _frames_line(result: ScanResult, clips: list[Sample]) -> str:
    config = result.config
    rates = _tally(f"{s.info.fps:.4g}" for s in clips)
    line = f"frames: {asked_frames(config)} of each clip at {config.fps:g} fps, from {rates} fps"
    variable = [s.name for s in clips if s.info.variable_rate]
    return f"{line}; variable rate: {_names(variable)}" if variable else line


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _tally(words: Iterable[str]) -> str:
    counts = Counter(words)
    return ", ".join(f"{word} ({count})" for word, count in counts.most_common())


def _names(names: Iterable[str], limit: int = 8) -> str:
    every = list(names)
    rest = len(every) - limit
    return ", ".join(every[:limit]) + (f" and {rest} more" if rest > 0 else "")
