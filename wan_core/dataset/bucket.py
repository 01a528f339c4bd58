"""Buckets: the (frames, height, width) that all samples of a batch share."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from ..words import filled

_MAX_ASPECT = 4.0
"""largest aspect ratio; wider or taller sources are cropped, because Wan was not trained on such shapes"""

_NEAR_ENOUGH = 0.05
"""largest |log| of the quotient of two aspect ratios at which the requested size is used (16:9 at 832x480: 0.025)"""


@dataclass(frozen=True, order=True)
class Bucket:
    """Pixel frames, height and width of a batch."""

    num_frames: int
    height: int
    width: int

    def __str__(self) -> str:
        return f"{self.width}x{self.height}x{self.num_frames}"


def is_frame_count(num_frames: int) -> bool:
    """True for 4n+1 (1, 5, 9 ... 81): the Wan VAE encodes one frame, then groups of four."""
    return num_frames >= 1 and num_frames % 4 == 1


def nearest_frames(num_frames: int) -> int:
    """Returns the largest 4n+1 up to `num_frames`; at least 1."""
    return max(1, (num_frames - 1) // 4 * 4 + 1)


def frames_sentence(num_frames: int, name: str = "num_frames") -> str:
    """Returns the advice for a count that is not 4n+1: 'Set num_frames to 29 or 33.'"""
    below = nearest_frames(num_frames)
    return filled("Set {name} to {below} or {above}.", name=name, below=below, above=below + 4)


def assign_bucket(
    source_width: int,
    source_height: int,
    *,
    num_frames: int,
    width: int,
    height: int,
    multiple: int = 16,
    enable_bucket: bool = True,
) -> Bucket:
    """Returns the bucket of a source; sizes in pixels.

    Without `enable_bucket` it is width x height. With it, both sides are multiples of `multiple`, and the area is at
    most `width * height`: width x height itself if that crops at most 5 %, otherwise the size with the lowest cost. The
    cost is twice the log of the cropped share plus the log of the unused area: a crop loses content, a smaller area
    loses detail.
    """
    crop = abs(math.log(source_width / source_height * height / width))
    if not enable_bucket or crop <= _NEAR_ENOUGH:
        return Bucket(num_frames, height, width)
    best_width, best_height = _fit(source_width, source_height, width * height, multiple)
    return Bucket(num_frames, best_height, best_width)


@lru_cache(maxsize=4096)
def _fit(source_width: int, source_height: int, area: int, multiple: int) -> tuple[int, int]:
    aspect = min(max(source_width / source_height, 1 / _MAX_ASPECT), _MAX_ASPECT)

    def loss(size: tuple[int, int]) -> tuple[float, int, int]:
        width, height = size
        crop = abs(math.log(width / height / aspect))
        unused = math.log(area / (width * height))
        # Rounded, so that equal costs compare equal on every machine, and the larger area wins.
        return (round(2 * crop + unused, 9), -width * height, width)

    sizes: set[tuple[int, int]] = set()
    for width in range(multiple, area // multiple + 1, multiple):
        ideal = int(width / aspect) // multiple * multiple
        fullest = area // width // multiple * multiple
        for height in (ideal, ideal + multiple, fullest):
            if multiple <= height <= fullest:
                sizes.add((width, height))
    return min(sizes, key=loss)
