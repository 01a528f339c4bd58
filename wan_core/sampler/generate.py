"""Generates a clip from noise, with one model, or with the experts of a pair in sequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from ..flow import add_noise
from ..model import Conditioning, WanTransformer
from .config import SamplingPreset
from .denoiser import Denoiser, turns
from .guidance import ModelInputs, guided_velocity
from .schedules import schedule
from .solvers import SOLVERS, Walk


def generate(
    denoisers: Sequence[Denoiser],
    text: Tensor,
    negative_text: Tensor,
    noise: Tensor,
    preset: SamplingPreset,
    *,
    seed: int = 0,
    conditioning: Conditioning | None = None,
    first_frame: Tensor | None = None,
    start: Tensor | None = None,
    on_step: Callable[[int, int], None] | None = None,
) -> Tensor:
    """Returns a clean normalised latent (B, C, F, H, W) float32, on the first device of the last model.

    `denoisers`: see `turns`. `text` (B, L, D), `negative_text` (B, M, D), `noise` (B, C, F, H, W) float32. The negative
    pass reads `conditioning.negative()`. `first_frame` (B, C, 1, H, W): the given first latent frame of TI2V-5B, which
    replaces the latent's before every step, with timestep 0. `start` (B, C, F, H, W): the clean latent to start from if
    the first denoiser starts below sigma 1. `seed`: of the noise that samplers such as lcm add. `on_step(done, total)`
    is called after each step, and may raise to stop. ConfigError if no denoiser has a step.
    """
    solver = SOLVERS[preset.sampler_name]
    walks = turns(denoisers, _sigmas(preset))
    total, done = sum(len(sigmas) - 1 for _, sigmas in walks), 0

    def stepped() -> None:
        nonlocal done
        done += 1
        if on_step is not None:
            on_step(done, total)

    latent = noise if start is None else add_noise(start, noise, walks[0][1][:1].expand(len(noise)))
    for denoiser, sigmas in walks:
        with denoiser.opened() as model, torch.no_grad():
            device = next(model.parameters()).device
            latent = latent.to(device)
            inputs = ModelInputs(
                text.to(device),
                negative_text.to(device),
                conditioning.to(device) if conditioning is not None else None,
                _scale(denoiser, preset),
                preset.shift,
                preset.guidance,
            )
            velocity = partial(_velocity, model, inputs, first_frame)
            walk = Walk(tuple(sigmas.tolist()), velocity, _noise_like(latent, seed), stepped)
            latent = solver.solve(walk, latent)
    return _with_first(latent, first_frame)


def _velocity(
    model: WanTransformer, inputs: ModelInputs, first_frame: Tensor | None, latent: Tensor, sigma: float
) -> Tensor:
    """Returns the velocity at `sigma`; a given first frame has timestep 0."""
    size = latent.shape[:1] if first_frame is None else latent.shape[:3:2]
    timestep = torch.full(size, 1000 * sigma, dtype=torch.float32, device=latent.device)
    if first_frame is not None:
        timestep[:, 0] = 0.0
    return guided_velocity(model, _with_first(latent, first_frame), timestep, sigma, inputs)


def _scale(denoiser: Denoiser, preset: SamplingPreset) -> float:
    """Returns the guidance scale of a denoiser; one whose range ends below sigma 1 is the low_noise expert."""
    low = preset.low_noise_guidance if denoiser.sigma_max < 1 else None
    return preset.guidance_scale if low is None else low


def _noise_like(latent: Tensor, seed: int) -> Callable[[], Tensor]:
    """Returns a function that draws noise of latent's shape on latent's device, as ComfyUI does for ancestral
    samplers."""
    # The seed is increased by one on a CPU, where the same seed would repeat the initial noise.
    own = (seed + (latent.device.type == "cpu")) % 2**64
    generator = torch.Generator(latent.device).manual_seed(own)
    return lambda: torch.randn(latent.shape, generator=generator, device=latent.device)


def _with_first(latent: Tensor, first_frame: Tensor | None) -> Tensor:
    return latent if first_frame is None else torch.cat([first_frame.to(latent), latent[:, :, 1:]], dim=2)


def steps_above(preset: SamplingPreset, boundary: float) -> int:
    """Returns the number of steps of a preset that start at sigma `boundary` or above, of the high_noise expert."""
    return int((_sigmas(preset)[:-1] >= boundary).sum())


def _sigmas(preset: SamplingPreset) -> Tensor:
    """Returns (steps + 1,) falling sigmas."""
    skips_last = SOLVERS[preset.sampler_name].skips_last
    return schedule(preset.scheduler, preset.steps, preset.shift, skips_last=skips_last)
