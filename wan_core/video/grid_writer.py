"""Many clips into one, each in its place of a picture, frame by frame: no clip is ever whole in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .frames import timed_frames
from .grid_picture import Place
from .messages import CENTRED
from .picture import fit
from .sources import open_clip
from .writer import write_frames


def write_grid(
    path: Path,
    below: Path | None,
    canvas: NDArray[np.uint8],
    clips: Sequence[tuple[Path, Place]],
    fps: float,
    num_frames: int,
    metadata: Mapping[str, str],
) -> None:
    """(H, W, 3) RGB with each of `clips` in its place, all from their first frame on, as an mp4 or webm."""
    with ExitStack() as opened:
        frames = _together(canvas, clips, num_frames, opened)
        write_frames(path, below, frames, canvas.shape[:2], fps, metadata)


def _together(
    canvas: NDArray[np.uint8], clips: Sequence[tuple[Path, Place]], num_frames: int, opened: ExitStack
) -> Iterator[NDArray[np.uint8]]:
    """Yields the picture with the next frame of every clip; one that is over keeps its last."""
    readers = [(_shown(file, place, opened), place) for file, place in clips]
    shown = canvas.copy()
    for _ in range(num_frames):
        for reader, place in readers:
            picture = next(reader, None)
            if picture is not None:
                shown[place.y : place.y + place.height, place.x : place.x + place.width] = picture
        yield shown


def _shown(file: Path, place: Place, opened: ExitStack) -> Iterator[NDArray[np.uint8]]:
    container, stream = opened.enter_context(open_clip(file))
    stream.codec_context.thread_count = 1  # there are many of them
    for _, _, frame in timed_frames(file, container, stream):
        yield fit(frame, 1.0, (place.width, place.height), CENTRED)
