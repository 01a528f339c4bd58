"""Finds scene cuts with the content detector of PySceneDetect, an optional package, which gets frames, not the file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..errors import DependencyError
from ..packages import pip_line
from .animations import open_moving
from .colours import refuse_colours, source_matrix

if TYPE_CHECKING:
    from av.video.frame import VideoFrame

_SIDE = 256
"""longer side of the detector's frames, as in PySceneDetect"""


def find_cuts(path: Path, threshold: float) -> list[float]:
    """Returns the start of every scene after the first, in seconds from the first frame.

    A scene starts at a frame whose mean change in hue, saturation and brightness reaches `threshold` (0 to 255). A
    scene may have one frame. DependencyError without PySceneDetect.
    """
    try:
        from scenedetect import ContentDetector, FrameTimecode
    except ImportError as error:
        raise DependencyError(
            f"split_scenes needs the package scenedetect ({error}). Run: {pip_line('scenedetect-headless')}"
        ) from error
    detector = ContentDetector(threshold=threshold, min_scene_len=0)
    cuts_s: list[float] = []
    with open_moving(path) as moving:
        for number, (time_s, _, frame) in enumerate(moving.frames(0.0)):
            if number == 0:
                refuse_colours(path, frame)
            # Times of a constant 25 fps, because the detector does not support variable rates; its result does not use
            # times.
            if detector.process_frame(FrameTimecode(number, fps=25.0), _small(frame)):
                cuts_s.append(time_s)
    return cuts_s


def _small(frame: VideoFrame) -> NDArray[np.uint8]:
    scale = min(1.0, _SIDE / max(frame.width, frame.height))
    small = frame.reformat(
        width=max(1, round(frame.width * scale)),
        height=max(1, round(frame.height * scale)),
        format="bgr24",
        src_colorspace=source_matrix(frame),
        threads=1,
    ).to_ndarray()
    return np.asarray(small, np.uint8)
