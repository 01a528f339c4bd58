"""wan_core.sampler"""

from __future__ import annotations

from .config import PRESETS, SampleConfig
from .euler import generate

__all__ = [
    "PRESETS",
    "SampleConfig",
    "generate",
]
