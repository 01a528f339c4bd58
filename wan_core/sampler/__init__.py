"""Denoising of preview clips with ComfyUI's schedules, without ComfyUI."""

from __future__ import annotations

from .config import AS_TEMPLATE, FEW_STEPS, OFFICIAL, SampleConfig, SamplingPreset
from .denoiser import Denoiser
from .generate import generate, steps_above
from .prompts import PreviewPrompt, file_name_of, read_prompts
