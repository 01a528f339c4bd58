"""Media files. Only a child process opens them, so a broken or hostile file costs one clip, not the server.

`VideoProcess` is the parent side. The child imports av, numpy and Pillow, but not torch.
"""

from __future__ import annotations

from .clip_measures import LOOK_SIZE, look_of, measure_clip
from .grid_picture import GridPicture, grid_picture, readable
from .messages import ClipInfo, Framing, covered_size
from .process import VideoProcess
from .sources import STILL_SUFFIXES, UnreadableError, require_pyav, shown
