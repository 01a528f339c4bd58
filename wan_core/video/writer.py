"""Frames to an mp4: one that browsers play (H.264, yuv420p, BT.709, index first), or one that keeps every bit."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..files import FileError, atomic_write_bytes

__all__ = ["write_clip", "write_lossless"]

_BT709 = 1


def write_clip(path: Path, frames: NDArray[np.uint8], fps: float) -> None:
    """(F, H, W, 3) RGB as an mp4 that appears whole or not at all. yuv420p takes even sizes: an odd
    edge is cut off.
    """
    from av.video.frame import VideoFrame
    from av.video.reformatter import Colorspace

    height, width = frames.shape[1] // 2 * 2, frames.shape[2] // 2 * 2
    with _container(path, {"movflags": "+faststart"}) as container:
        stream = container.add_stream("libx264", rate=Fraction(fps).limit_denominator(1001))
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.options = {"crf": "18", "preset": "veryfast"}
        context = stream.codec_context
        context.colorspace = context.color_primaries = context.color_trc = _BT709
        for rgb in frames:
            frame = VideoFrame.from_ndarray(np.ascontiguousarray(rgb[:height, :width]), format="rgb24").reformat(
                format="yuv420p", dst_colorspace=Colorspace.ITU709
            )
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def write_lossless(path: Path, frames: NDArray[np.uint8], fps: float) -> None:
    """(F, H, W, 3) RGB as FFV1 in an mp4, whose times are exact where Matroska's are rounded to milliseconds.

    Each slice carries a checksum, so damage shows when it is read.
    """
    from av.video.frame import VideoFrame

    with _container(path, {}) as container:
        stream = container.add_stream("ffv1", rate=Fraction(fps).limit_denominator(1001))
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "bgr0"  # RGB as it is, without a colour matrix
        stream.options = {"level": "3", "slices": "4", "slicecrc": "1", "g": "1"}
        for rgb in frames:
            container.mux(stream.encode(VideoFrame.from_ndarray(rgb, format="rgb24").reformat(format="bgr0")))
        container.mux(stream.encode())


@contextlib.contextmanager
def _container(path: Path, options: dict[str, str]) -> Iterator[Any]:
    """An open mp4 whose bytes get the name `path` when all is written."""
    import av

    with tempfile.TemporaryDirectory(prefix="wan_trainer_") as folder:
        staged = Path(folder) / "clip.mp4"
        with av.open(str(staged), "w", options=options) as container:
            yield container
        try:
            atomic_write_bytes(path, staged.read_bytes())
        except OSError as error:
            raise FileError(
                f"{path.name} cannot be written: {error.strerror}. Make room or choose another folder."
            ) from error
