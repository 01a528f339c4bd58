"""Settings of sampling that belong together: what ComfyUI's own templates and the official code generate with."""

from __future__ import annotations

from dataclasses import dataclass

from ..families import Template, family_called
from .guidance import Guidance


@dataclass(frozen=True)
class SamplingPreset:
    """Settings that belong together: steps, guidance, shift and the sampler they were chosen for."""

    steps: int
    guidance_scale: float
    shift: float
    sampler_name: str = "euler"
    scheduler: str = "simple"
    guidance: Guidance = Guidance()
    low_noise_guidance: float | None = None
    """the scale of the low noise expert of a pair; None: the same"""


FEW_STEPS = "4-step LoRA"
"""makes sense only with a LoRA that was distilled for so few steps: without it clips end in noise"""
PRESETS = {
    "ComfyUI template": SamplingPreset(20, 6.0, 8.0),
    # Wan2.1 README for T2V-1.3B; the other models' configs say shift 5, guidance 5.
    "official": SamplingPreset(50, 5.0, 5.0),
    FEW_STEPS: SamplingPreset(4, 1.0, 5.0),
}


def template_of(template: Template) -> SamplingPreset:
    """Returns the settings that ComfyUI's template of a model (`WanVariant.template`) samples with."""
    return SamplingPreset(template.steps, template.guidance_scale, template.shift, template.sampler_name)


def template_called(variant: str) -> str:
    """Returns the name of ComfyUI's template of a model, by the name of its variant; "" where it has none."""
    family = family_called(variant)
    if family is None or any(model.name == variant and not model.has_template for model in family.models):
        return ""
    if not variant.endswith(" noise"):
        return family.template.name
    return family.pair.template.name if family.pair else ""
