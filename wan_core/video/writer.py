"""Writes clips: an mp4 or webm for browsers (yuv420p, BT.709, index first), a lossless mp4, or a grid of clips.

Metadata such as the workflow is stored as in ComfyUI's files: a JSON text per key.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..files import FileError, atomic_write_bytes
from .frames import timed_frames
from .grid_picture import Place
from .messages import CENTRED
from .picture import fit
from .sources import open_clip

_BT709 = 1
_KINDS: dict[str, tuple[str, dict[str, str], dict[str, str]]] = {
    ".mp4": ("libx264", {"crf": "18", "preset": "veryfast"}, {"movflags": "+faststart+use_metadata_tags"}),
    ".webm": ("libvpx-vp9", {"crf": "24", "b": "0", "deadline": "good", "cpu-used": "5", "row-mt": "1"}, {}),
}
"""suffix -> (encoder, options of the encoder, options of the container)"""


def write_frames(
    path: Path,
    below: Path | None,
    frames: Iterator[NDArray[np.uint8]],
    size: tuple[int, ...],
    fps: float,
    metadata: Mapping[str, str],
) -> None:
    """Write frames (H, W, 3) RGB of `size` (H, W) as an mp4 (H.264) or, by suffix, a webm (VP9); yuv420p needs even
    sizes, so an odd edge is cropped."""
    from av.video.frame import VideoFrame
    from av.video.reformatter import Colorspace

    height, width = size[0] // 2 * 2, size[1] // 2 * 2
    codec, options, container_options = _KINDS[path.suffix]
    with _container(path, below, container_options) as container:
        container.metadata.update(metadata)
        stream = container.add_stream(codec, rate=Fraction(fps).limit_denominator(1001))
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.options = options
        context = stream.codec_context
        context.colorspace = context.color_primaries = context.color_trc = _BT709
        for rgb in frames:
            frame = VideoFrame.from_ndarray(np.ascontiguousarray(rgb[:height, :width]), format="rgb24").reformat(
                format="yuv420p", dst_colorspace=Colorspace.ITU709
            )
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def write_lossless(path: Path, below: Path | None, frames: NDArray[np.uint8], fps: float) -> None:
    """Write (F, H, W, 3) RGB as FFV1 with slice checksums in an mp4; Matroska would round times to milliseconds."""
    from av.video.frame import VideoFrame

    with _container(path, below, {}) as container:
        stream = container.add_stream("ffv1", rate=Fraction(fps).limit_denominator(1001))
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "bgr0"  # RGB, because a conversion by a colour matrix is not lossless
        stream.options = {"level": "3", "slices": "4", "slicecrc": "1", "g": "1"}
        for rgb in frames:
            container.mux(stream.encode(VideoFrame.from_ndarray(rgb, format="rgb24").reformat(format="bgr0")))
        container.mux(stream.encode())


@contextlib.contextmanager
def _container(path: Path, below: Path | None, options: dict[str, str]) -> Iterator[Any]:
    """Yields an open container; its bytes are written to `path` at the end, with `atomic_write`."""
    import av

    with tempfile.TemporaryDirectory(prefix="wan_trainer_") as folder:
        # Staged in a temporary folder, because FFmpeg opens the path itself, and would follow a link.
        staged = Path(folder) / f"clip{path.suffix}"
        with av.open(str(staged), "w", options=options) as container:
            yield container
        try:
            atomic_write_bytes(path, staged.read_bytes(), below)
        except OSError as error:
            raise FileError(
                f"{path.name} cannot be written: {error.strerror}. Free disk space, or choose another folder."
            ) from error


def write_grid(
    path: Path,
    below: Path | None,
    canvas: NDArray[np.uint8],
    clips: Sequence[tuple[Path, Place]],
    fps: float,
    num_frames: int,
    metadata: Mapping[str, str],
) -> None:
    """Write an mp4 or webm: the canvas (H, W, 3) with each clip in its place."""
    with ExitStack() as opened:
        readers = [(_shown(file, place, opened), place) for file, place in clips]

        def together() -> Iterator[NDArray[np.uint8]]:
            shown = canvas.copy()
            for _ in range(num_frames):
                for reader, place in readers:
                    if (picture := next(reader, None)) is not None:  # an ended clip keeps its last frame
                        shown[place.y : place.y + place.height, place.x : place.x + place.width] = picture
                yield shown

        write_frames(path, below, together(), canvas.shape[:2], fps, metadata)


def _shown(file: Path, place: Place, opened: ExitStack) -> Iterator[NDArray[np.uint8]]:
    container, stream = opened.enter_context(open_clip(file))
    stream.codec_context.thread_count = 1  # one thread, because many clips are decoded at once
    for _, _, frame in timed_frames(file, container, stream):
        yield fit(frame, 1.0, (place.width, place.height), CENTRED)
