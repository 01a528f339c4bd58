"""Frames to an mp4 that browsers play: H.264, yuv420p, BT.709, index first."""

from __future__ import annotations

import tempfile
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..files import FileError, atomic_write_bytes

__all__ = ["write_clip"]

_BT709 = 1


def write_clip(path: Path, frames: NDArray[np.uint8], fps: float) -> None:
    """(F, H, W, 3) RGB as an mp4 that appears whole or not at all. yuv420p takes even sizes: an odd
    edge is cut off.
    """
    import av
    from av.video.frame import VideoFrame
    from av.video.reformatter import Colorspace

    height, width = frames.shape[1] // 2 * 2, frames.shape[2] // 2 * 2
    with tempfile.TemporaryDirectory(prefix="wan_trainer_") as folder:
        staged = Path(folder) / "clip.mp4"
        container: Any
        with av.open(str(staged), "w", options={"movflags": "+faststart"}) as container:
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
        try:
            atomic_write_bytes(path, staged.read_bytes())
        except OSError as error:
            raise FileError(
                f"{path.name} cannot be written: {error.strerror}. Make room or choose another folder."
            ) from error
