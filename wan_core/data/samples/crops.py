"""Which size a source is trained at, and which part of its picture: centre, random variants, or all of it."""

from __future__ import annotations

import math

from ...video import ClipInfo, Framing, covered_size
from ..bucket import Bucket, assign_bucket
from .config import DatasetConfig
from .draws import draw_different

__all__ = ["find_bucket", "find_framings"]


def find_bucket(info: ClipInfo, num_frames: int, config: DatasetConfig) -> Bucket | None:
    """The size a source is trained at; None when it is smaller than the size grid and may not be enlarged."""
    if config.crop == "none":
        return _own_size(info, num_frames, config)
    return assign_bucket(
        info.width,
        info.height,
        num_frames=num_frames,
        width=config.width,
        height=config.height,
        multiple=config.size_multiple,
        enable_bucket=config.enable_bucket,
    )


def _own_size(info: ClipInfo, num_frames: int, config: DatasetConfig) -> Bucket | None:
    """The source's own size, scaled down if it has more than width x height pixels, both sides rounded down to the
    size grid. What is cut off is less than one step of the grid per axis.
    """
    scale = min(1.0, math.sqrt(config.width * config.height / (info.width * info.height)))
    width, height = (
        int(side * scale + 1e-9) // config.size_multiple * config.size_multiple for side in (info.width, info.height)
    )
    return Bucket(num_frames, height, width) if width and height else None


def find_framings(info: ClipInfo, bucket: Bucket, config: DatasetConfig, seed: str) -> list[Framing]:
    """What of the picture is kept: one entry, or with random crops up to `config.variants` that take turns.

    A random crop moves along the axis that is cut off anyway (the source is scaled to cover the bucket first); where
    nothing is cut off there is one place only.
    """
    if config.crop == "none":
        return [Framing(native=info.width * info.height <= config.width * config.height)]
    if config.crop == "center":
        return [Framing()]
    source, wanted = (info.width, info.height), (bucket.width, bucket.height)
    covered = covered_size(source, wanted)
    columns, rows = covered[0] - wanted[0] + 1, covered[1] - wanted[1] + 1
    centre = Framing().place(covered, wanted)
    places = [divmod(place, rows) for place in draw_different(seed, "crop", columns * rows, config.variants)]
    return [Framing(offset=None if place == centre else place) for place in places]
