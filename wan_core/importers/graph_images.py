"""Images of a graph as clips and stills of a dataset.

They are written losslessly to the cache folder, named by content and frame rate, and then scanned like other files.
Workers and resumed runs read the files without the graph, and running the graph again writes nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..cache import picture_path, write_picture
from ..dataset import MIN_SOURCE_PIXELS, DatasetConfig, MediaFile, ScanContext, ScanResult, scan_files
from ..dataset.files import SourcePart
from ..errors import DatasetError
from ..video import ClipInfo, VideoProcess

Pixels = Tensor | Callable[[], Tensor]
"""(F, H, W, C) in [0, 1] with RGB as first channels, or a function that decodes such pixels"""


@dataclass(frozen=True)
class PixelClip:
    """One clip or still."""

    held: Pixels
    fps: float
    """original frame rate; unused for a still"""
    caption: str
    name: str
    """name in messages, such as "clip 1" """

    @property
    def pixels(self) -> Tensor:
        """The pixels (F, H, W, C). Each access decodes them, unless they are in memory."""
        return self.held if isinstance(self.held, Tensor) else self.held()


def match_captions(
    clips: Sequence[Pixels], captions: Sequence[str], rates: Sequence[float], *, stills: bool
) -> list[PixelClip]:
    """Returns clips with caption and frame rate. Raises DatasetError unless each clip has a non-empty caption.

    `stills`: every frame is a still. A single text with one line per clip is one caption per line. `rates`: one frame
    rate for all clips, or one for each.
    """
    parts = _frames_of(clips) if stills else list(clips)
    what = "still" if stills else "clip"
    if not parts:
        raise DatasetError(
            f"No {what}s are connected. Connect images, one IMAGE for each clip or any number of stills."
        )
    if len(rates) == 1 or stills:
        rates = [rates[0]] * len(parts)
    if len(rates) != len(parts):
        raise DatasetError(
            f"There are {len(rates)} frame rates for {len(parts)} clips. Give fps one number, or one for each clip."
        )
    texts = _lines(captions, len(parts))
    if len(texts) != len(parts):
        more = "more captions than" if len(texts) > len(parts) else "fewer captions than"
        raise DatasetError(
            f"There are {more} {what}s: {len(texts)} for {len(parts)}. Give exactly one caption for each {what}"
            + (", or set batch_is to stills if each frame is a picture of its own." if not stills else ".")
        )
    if empty := [number for number, text in enumerate(texts, 1) if not text]:
        raise DatasetError(f"Caption {empty[0]} of {len(texts)} is empty. Write what is seen.")
    both = enumerate(zip(parts, rates, texts, strict=True), 1)
    return [PixelClip(part, rate, text, f"{what} {n}") for n, (part, rate, text) in both]


def scan_pixels(
    config: DatasetConfig, clips: Sequence[PixelClip], context: ScanContext, *, stills: bool, cache_root: Path
) -> ScanResult:
    """Write `clips` to the cache, after checking all of them, and scan the files; raises DatasetError, which names an
    invalid clip."""
    for clip in clips:
        context.stop_if_asked("looking at images of the graph")
        _check(clip, config, stills)
    names: dict[Path, str] = {}
    files: list[MediaFile] = []
    for number, clip in enumerate(clips, 1):
        context.stop_if_asked("keeping images of the graph")
        if stills:
            path = picture_path(cache_root, write_picture(cache_root, clip.pixels[0, :, :, :3]))
        else:
            path = _keep_clip(cache_root, clip, context.video)
        names.setdefault(path, clip.name)
        files.append(MediaFile(path=path, caption=clip.caption))
        context.tell(number, len(clips), clip.name)
    # Without allowed folders, because the files are in the cache; without progress, because writing has reported it.
    part = SourcePart(name="the graph", files=tuple(files))
    found = scan_files(config, part, replace(context, allowed=(), progress=None))
    return replace(found, samples=tuple(replace(sample, name=names[sample.path]) for sample in found.samples))


def _frames_of(clips: Sequence[Pixels]) -> list[Pixels]:
    frames: list[Pixels] = []
    for clip in clips:
        if not isinstance(clip, Tensor):
            raise DatasetError("A VIDEO is one clip. Set batch_is to clip, or take its images by Get Video Components.")
        frames.extend(frame[None] for frame in clip)
    return frames


def _lines(captions: Sequence[str], wanted: int) -> list[str]:
    if len(captions) == 1 and wanted > 1:
        lines = [line for line in captions[0].splitlines() if line.strip()]
        captions = lines or captions
    return [" ".join(text.split()) for text in captions]


def _check(clip: PixelClip, config: DatasetConfig, stills: bool) -> None:
    pixels, fps = clip.pixels, clip.fps
    shape = tuple(pixels.shape)
    if len(shape) != 4 or shape[3] < 3 or shape[0] < 1:
        raise DatasetError(f"{clip.name} has shape {list(shape)}; an IMAGE is (frames, height, width, 3). Check it.")
    height, width = shape[1:3]
    if min(height, width) < MIN_SOURCE_PIXELS:
        raise DatasetError(f"{clip.name} is only {width}x{height} pixels. Use images of {MIN_SOURCE_PIXELS} and more.")
    if not bool(torch.isfinite(pixels).all()):
        raise DatasetError(f"{clip.name} contains NaN or infinity. Check the node that makes it.")
    if stills:
        return
    info = ClipInfo(kind="clip", width=width, height=height, num_frames=shape[0], fps=fps, duration_s=shape[0] / fps)
    available = info.frames_at(config.fps)
    if available + 1 < config.num_frames:  # dataset/cutting.py repeats the last frame if one is missing
        rate = "" if abs(fps - config.fps) < 0.01 else f" ({shape[0]} at {fps:.4g} fps)"
        raise DatasetError(
            f"{clip.name} has {available} frames at {config.fps:g} fps{rate}, fewer than num_frames "
            f"{config.num_frames}. Lower num_frames, or make the clip longer."
        )


def _keep_clip(cache_root: Path, clip: PixelClip, video: VideoProcess) -> Path:
    frames, fps = _bytes_of(clip.pixels), clip.fps
    name = hashlib.sha256(f"{frames.shape} {fps!r} ".encode() + frames.tobytes()).hexdigest()
    path = cache_root / "clips" / name[:2] / f"{name}.mp4"
    if not _is_complete(path, len(frames), video):
        video.write(path, frames, fps, lossless=True, below=cache_root)
    return path


def _is_complete(path: Path, num_frames: int, video: VideoProcess) -> bool:
    """Returns whether the file exists and has all frames; a truncated one is written again."""
    if not path.is_file():
        return False
    try:
        return video.probe(path).num_frames == num_frames
    except DatasetError:
        return False


def _bytes_of(pixels: Tensor) -> NDArray[np.uint8]:
    """Returns (F, H, W, 3) uint8, like frames of clips from files."""
    return (pixels[:, :, :, :3].detach().cpu().clamp(0, 1) * 255).round().to(torch.uint8).contiguous().numpy()
