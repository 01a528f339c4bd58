"""Denoising for validation clips, without ComfyUI but with ComfyUI's schedule."""

from __future__ import annotations

from .config import SampleConfig
from .denoiser import Denoiser
from .generate import generate
from .presets import SamplingPreset, template_of
from .prompts import PreviewPrompt, read_prompts

__all__ = [
    "Denoiser",
    "PreviewPrompt",
    "SampleConfig",
    "SamplingPreset",
    "generate",
    "read_prompts",
    "template_of",
]
