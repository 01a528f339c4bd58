"""Denoising for validation clips, without ComfyUI but with ComfyUI's schedule."""

from __future__ import annotations

from .config import SampleConfig
from .euler import generate

__all__ = [
    "SampleConfig",
    "generate",
]
