"""Media files, opened only in a child process: a broken or hostile file costs one clip, never the
server.

`VideoProcess` is the parent's side; the child imports av, numpy and Pillow, never torch.
"""

from __future__ import annotations

from .clip_measures import measure_clip
from .grid_picture import GridPicture, grid_picture, readable
from .look_hash import LOOK_SIZE, look_of
from .messages import ClipInfo, Framing, covered_size
from .process import VideoProcess
from .pyav import require_pyav
from .sources import STILL_SUFFIXES, UnreadableError, shown

__all__ = [
    "LOOK_SIZE",
    "STILL_SUFFIXES",
    "ClipInfo",
    "Framing",
    "GridPicture",
    "UnreadableError",
    "VideoProcess",
    "covered_size",
    "grid_picture",
    "look_of",
    "measure_clip",
    "readable",
    "require_pyav",
    "shown",
]
