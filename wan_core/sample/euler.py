"""The Euler sampler: the same steps ComfyUI's KSampler (euler, simple) takes on a Wan model."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..flow import simple_sigmas
from ..model import WanTransformer
from .config import SamplingPreset

__all__ = ["generate"]


def generate(
    model: WanTransformer,
    text: Tensor,
    negative_text: Tensor,
    noise: Tensor,
    preset: SamplingPreset,
    *,
    on_step: Callable[[int, int], None] | None = None,
) -> Tensor:
    """Denoise to a clean normalised latent (B, C, F, H, W) float32 on the model's first device.

    text and negative_text (B, 512, D), noise (B, C, F, H, W) float32. Guidance 1 skips the negative pass.
    `on_step(done, total)` is called after each denoising step and may raise to stop.
    """
    device = next(model.parameters()).device
    sigmas = simple_sigmas(preset.steps, preset.shift)
    latent, text, negative_text = noise.to(device), text.to(device), negative_text.to(device)
    with torch.no_grad():
        for index in range(preset.steps):
            sigma, following = float(sigmas[index]), float(sigmas[index + 1])
            timestep = torch.full((latent.shape[0],), 1000 * sigma, dtype=torch.float32, device=device)
            velocity = model(latent, timestep, text)
            if preset.guidance_scale != 1.0:
                unconditional = model(latent, timestep, negative_text)
                velocity = unconditional + preset.guidance_scale * (velocity - unconditional)
            latent = latent + (following - sigma) * velocity
            if on_step is not None:
                on_step(index + 1, preset.steps)
    return latent
