"""The Euler sampler: the same steps ComfyUI's KSampler (euler, simple) takes on a Wan model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from ..flow import add_noise, simple_sigmas
from ..model import Conditioning
from .config import SamplingPreset
from .denoiser import Denoiser, turns

__all__ = ["generate"]


def generate(
    denoisers: Sequence[Denoiser],
    text: Tensor,
    negative_text: Tensor,
    noise: Tensor,
    preset: SamplingPreset,
    *,
    conditioning: Conditioning | None = None,
    first_frame: Tensor | None = None,
    start: Tensor | None = None,
    on_step: Callable[[int, int], None] | None = None,
) -> Tensor:
    """Denoise to a clean normalised latent (B, C, F, H, W) float32 on the first device of the last model.

    Each of `denoisers`, noisiest first, takes the steps that begin inside its noise levels; a single model is
    `[Denoiser.of(model)]`. text and negative_text (B, 512, D), noise (B, C, F, H, W) float32. Guidance 1 skips the
    negative pass; the negative pass reads the same `conditioning`. `first_frame` (B, C, 1, H, W) is the clean first
    latent frame of TI2V-5B image-to-video: put back before every step, its tokens at timestep 0. `start`, of the shape
    of the noise, is the clean latent that sampling starts from where the first denoiser begins below noise level 1.
    `on_step(done, total)` is called after each denoising step and may raise to stop. ConfigError when none of the steps
    belongs to a denoiser.
    """
    walks = turns(denoisers, simple_sigmas(preset.steps, preset.shift))
    total, done = sum(len(sigmas) - 1 for _, sigmas in walks), 0
    latent = noise if start is None else add_noise(start, noise, walks[0][1][:1].expand(len(noise)))
    latent = _with_first(latent, first_frame)
    for denoiser, sigmas in walks:
        scale = preset.guidance_scale if denoiser.guidance_scale is None else denoiser.guidance_scale
        with denoiser.opened() as model, torch.no_grad():
            device = next(model.parameters()).device
            latent, text, negative_text = latent.to(device), text.to(device), negative_text.to(device)
            conditioning = conditioning.to(device) if conditioning is not None else None
            for sigma, following in pairwise(sigmas.tolist()):
                timestep = _timestep(latent, 1000 * sigma, first_frame is not None)
                velocity = model(latent, timestep, text, conditioning)
                if scale != 1.0:
                    unconditional = model(latent, timestep, negative_text, conditioning)
                    velocity = unconditional + scale * (velocity - unconditional)
                latent = _with_first(latent + (following - sigma) * velocity, first_frame)
                done += 1
                if on_step is not None:
                    on_step(done, total)
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
