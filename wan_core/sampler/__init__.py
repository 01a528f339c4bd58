"""Denoising for validation clips, without ComfyUI but with ComfyUI's schedule."""

from __future__ import annotations

from .config import SampleConfig
from .denoiser import Denoiser
from .generate import generate

__all__ = [
    "Denoiser",
    "SampleConfig",
    "generate",
]
