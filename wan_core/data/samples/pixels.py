"""The pixels of a sample, as its cut says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...video import VideoProcess
from .sample import Sample

__all__ = ["read_sample"]


def read_sample(video: VideoProcess, sample: Sample, fps: float, path: Path | None = None) -> NDArray[np.uint8]:
    """(F, H, W, 3) RGB in the sample's bucket. `path` reads another file the same way: a control or mask video."""
    bucket = sample.bucket
    return video.read(
        path or sample.path,
        fps=sample.cut.fps or fps,
        num_frames=bucket.num_frames,
        width=bucket.width,
        height=bucket.height,
        start_s=sample.cut.start_s,
        framing=sample.cut.framing,
        held=sample.cut.held,
    )
