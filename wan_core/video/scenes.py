"""Finds scene cuts by the change between two frames in hue, saturation and brightness, as PySceneDetect's content
detector does."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .animations import open_moving
from .colours import refuse_colours, source_matrix

if TYPE_CHECKING:
    from av.video.frame import VideoFrame

_SIDE = 256
"""longer side of the compared frames, as in PySceneDetect"""


def find_cuts(path: Path, threshold: float) -> list[float]:
    """Returns the start of every scene after the first, in seconds from the first frame.

    A scene starts at a frame whose mean change in hue, saturation and brightness reaches `threshold` (0 to 255). A
    scene may have one frame.
    """
    cuts_s: list[float] = []
    before: NDArray[np.float32] | None = None
    with open_moving(path) as moving:
        for number, (time_s, _, frame) in enumerate(moving.frames(0.0)):
            if number == 0:
                refuse_colours(path, frame)
            now = hue_saturation_brightness(_small(frame))
            if before is not None and np.abs(now - before).mean() >= threshold:
                cuts_s.append(time_s)
            before = now
    return cuts_s


def hue_saturation_brightness(rgb: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Returns (3, H, W): hue of 0 to 180, saturation and brightness of 0 to 255, in OpenCV's whole steps."""
    red, green, blue = rgb.astype(np.float32).transpose(2, 0, 1)
    most = np.maximum(np.maximum(red, green), blue)
    spread = most - np.minimum(np.minimum(red, green), blue)
    of_red, of_green, of_blue = green - blue, blue - red + 2 * spread, red - green + 4 * spread
    turned = np.where(most == red, of_red, np.where(most == green, of_green, of_blue))
    hue = np.rint(30 * turned / np.maximum(spread, 1))
    return np.stack((np.where(hue < 0, hue + 180, hue), np.rint(255 * spread / np.maximum(most, 1)), most))


def _small(frame: VideoFrame) -> NDArray[np.uint8]:
    scale = min(1.0, _SIDE / max(frame.width, frame.height))
    small = frame.reformat(
        width=max(1, round(frame.width * scale)),
        height=max(1, round(frame.height * scale)),
        format="rgb24",
        src_colorspace=source_matrix(frame),
        threads=1,
    ).to_ndarray()
    return np.asarray(small, np.uint8)
