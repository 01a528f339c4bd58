"""Frames to a clip: an mp4 or webm that browsers play (yuv420p, BT.709, index first), or an mp4 that keeps every bit.

Texts such as the workflow stand in it as ComfyUI's own savers write them: one JSON text a key.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..files import FileError, atomic_write_bytes

_BT709 = 1
_KINDS: dict[str, tuple[str, dict[str, str], dict[str, str]]] = {
    ".mp4": ("libx264", {"crf": "18", "preset": "veryfast"}, {"movflags": "+faststart+use_metadata_tags"}),
    ".webm": ("libvpx-vp9", {"crf": "24", "b": "0", "deadline": "good", "cpu-used": "5", "row-mt": "1"}, {}),
}
"""by the end of the file's name: encoder, its options, those of the container"""


def write_clip(
    path: Path, below: Path | None, frames: NDArray[np.uint8], fps: float, metadata: Mapping[str, str]
) -> None:
    """(F, H, W, 3) RGB as an mp4 that appears whole or not at all. yuv420p takes even sizes: an odd
    edge is cut off.
    """
    write_frames(path, below, iter(frames), frames.shape[1:3], fps, metadata)


def write_frames(
    path: Path,
    below: Path | None,
    frames: Iterator[NDArray[np.uint8]],
    size: tuple[int, ...],
    fps: float,
    metadata: Mapping[str, str],
) -> None:
    """Frames (H, W, 3) RGB of one `size` (H, W), as they come, into an mp4 (H.264) or, by its name, a webm (VP9)."""
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
    """(F, H, W, 3) RGB as FFV1 in an mp4, whose times are exact where Matroska's are rounded to milliseconds.

    Each slice carries a checksum, so damage shows when it is read.
    """
    from av.video.frame import VideoFrame

    with _container(path, below, {}) as container:
        stream = container.add_stream("ffv1", rate=Fraction(fps).limit_denominator(1001))
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "bgr0"  # RGB as it is, without a colour matrix
        stream.options = {"level": "3", "slices": "4", "slicecrc": "1", "g": "1"}
        for rgb in frames:
            container.mux(stream.encode(VideoFrame.from_ndarray(rgb, format="rgb24").reformat(format="bgr0")))
        container.mux(stream.encode())


@contextlib.contextmanager
def _container(path: Path, below: Path | None, options: dict[str, str]) -> Iterator[Any]:
    """An open file of that kind whose bytes get the name `path` when all is written, as `atomic_write` says."""
    import av

    with tempfile.TemporaryDirectory(prefix="wan_trainer_") as folder:
        staged = Path(folder) / f"clip{path.suffix}"
        with av.open(str(staged), "w", options=options) as container:
            yield container
        try:
            atomic_write_bytes(path, staged.read_bytes(), below)
        except OSError as error:
            raise FileError(
                f"{path.name} cannot be written: {error.strerror}. Make room or choose another folder."
            ) from error
