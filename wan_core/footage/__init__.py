"""Measures of footage: pure arithmetic on the brightness of frames, one frame at a time, in bounded memory.

`video` decodes in a child process and feeds a `Meter`; `dataset` and the sheet read its `Measures`.
"""

from __future__ import annotations

from .measures import FOOTAGE_VERSION, Measures, Rectangle
from .meter import SMALL_WIDTH, Luma, Meter
