"""Denoising for validation clips, without ComfyUI but with ComfyUI's schedule."""

from __future__ import annotations

from .config import SampleConfig
from .denoiser import Denoiser
from .generate import generate
from .presets import SamplingPreset, template_of

__all__ = [
    "Denoiser",
    "SampleConfig",
    "SamplingPreset",
    "generate",
    "template_of",
]
