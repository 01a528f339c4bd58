"""Denoising for validation clips, without ComfyUI but with ComfyUI's schedule."""

from __future__ import annotations

from .config import PRESETS, SampleConfig
from .euler import generate

__all__ = [
    "PRESETS",
    "SampleConfig",
    "generate",
]
