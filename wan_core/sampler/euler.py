"""The Euler sampler: the same steps ComfyUI's KSampler (euler, simple) takes on a Wan model."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..flow import simple_sigmas
from ..model import Conditioning, WanTransformer
from .config import SamplingPreset

__all__ = ["generate"]


def generate(
    model: WanTransformer,
    text: Tensor,
    negative_text: Tensor,
    noise: Tensor,
    preset: SamplingPreset,
    *,
    conditioning: Conditioning | None = None,
    first_frame: Tensor | None = None,
    on_step: Callable[[int, int], None] | None = None,
) -> Tensor:
    """Denoise to a clean normalised latent (B, C, F, H, W) float32 on the model's first device.

    text and negative_text (B, 512, D), noise (B, C, F, H, W) float32. Guidance 1 skips the negative pass; the negative
    pass reads the same `conditioning`. `first_frame` (B, C, 1, H, W) is the clean first latent frame of TI2V-5B
    image-to-video: put back before every step, its tokens at timestep 0.
    `on_step(done, total)` is called after each denoising step and may raise to stop.
    """
    device = next(model.parameters()).device
    sigmas = simple_sigmas(preset.steps, preset.shift)
    latent, text, negative_text = noise.to(device), text.to(device), negative_text.to(device)
    conditioning = conditioning.to(device) if conditioning is not None else None
    with torch.no_grad():
        latent = _with_first(latent, first_frame)
        for index in range(preset.steps):
            sigma, following = float(sigmas[index]), float(sigmas[index + 1])
            timestep = _timestep(latent, 1000 * sigma, first_frame is not None)
            velocity = model(latent, timestep, text, conditioning)
            if preset.guidance_scale != 1.0:
                unconditional = model(latent, timestep, negative_text, conditioning)
                velocity = unconditional + preset.guidance_scale * (velocity - unconditional)
            latent = _with_first(latent + (following - sigma) * velocity, first_frame)
            if on_step is not None:
                on_step(index + 1, preset.steps)
    return latent


def _timestep(latent: Tensor, timestep: float, given: bool) -> Tensor:
    """(B,) for all frames alike, or (B, F) with 0 for the given first one; float32."""
    size = (latent.shape[0], latent.shape[2]) if given else (latent.shape[0],)
    rows = torch.full(size, timestep, dtype=torch.float32, device=latent.device)
    if given:
        rows[:, 0] = 0.0
    return rows


def _with_first(latent: Tensor, first_frame: Tensor | None) -> Tensor:
    """`latent` with its first frame replaced."""
    return latent if first_frame is None else torch.cat([first_frame.to(latent), latent[:, :, 1:]], dim=2)
