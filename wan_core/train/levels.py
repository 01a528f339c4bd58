"""Draws the noise levels of micro-batches, as the settings say: each by itself, or spread evenly over several."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import ConfigError
from ..flow import draw_sigma, is_in_range, resolution_shift, seeded_generator
from .config import TrainConfig

__all__ = ["Levels"]


class Levels:
    """The noise levels of a job: a function of the number of the draw."""

    def __init__(self, config: TrainConfig, sigma_range: tuple[float, float]) -> None:
        """`sigma_range`: what the model is trained on. Raises ConfigError where the settings leave nothing of it."""
        self._config = config
        self._range = config.narrowed(sigma_range)
        listed = torch.tensor(config.timestep_list) / 1000
        self._listed = listed[is_in_range(listed, self._range)]
        if len(listed) and not len(self._listed):
            low, high = (1000 * sigma for sigma in self._range)
            raise ConfigError(
                f"No noise level of timestep_list lies in what is trained here, {low:g} to {high:g}. Add one, or empty "
                "the list."
            )

    def drawn(self, place: int, latents: Tensor) -> Tensor:
        """Returns the noise levels (B,) of draw number `place`, for latents (B, C, F, H, W)."""
        config, count = self._config, len(latents)
        generator = seeded_generator(config.seed, "sigma", place)
        parts = self._parts(place * config.batch_size, count) if config.timestep_strata else None
        if len(self._listed):
            numbers = torch.rand(count, generator=generator, dtype=torch.float64) if parts is None else parts
            return self._listed[(numbers * len(self._listed)).long().clamp(max=len(self._listed) - 1)]
        rescaled = config.timestep_range == "rescaled"
        low, high = self._range
        by_size = resolution_shift(config.timestep_sampling, *latents.shape[-2:])
        sigma = draw_sigma(
            count,
            generator,
            sampling=config.timestep_sampling,
            shift=config.discrete_flow_shift if by_size is None else by_size,
            sigmoid_scale=config.sigmoid_scale,
            logit_mean=config.logit_mean,
            logit_std=config.logit_std,
            mode_scale=config.mode_scale,
            sigma_min=0.0 if rescaled else low,
            sigma_max=1.0 if rescaled else high,
            parts=parts,
        )
        return low + (high - low) * sigma if rescaled else sigma

    def _parts(self, first: int, count: int) -> Tensor:
        """Returns where the draws from number `first` on lie in the distribution, (count,) float64 in 0 to 1.

        Each window of `timestep_strata` draws has one in every equal part of it, in an order of its own.
        """
        strata = self._config.timestep_strata
        found = []
        for number in range(first, first + count):
            window, within = divmod(number, strata)
            order = torch.randperm(strata, generator=seeded_generator(self._config.seed, "strata", window))
            inside = torch.rand((), generator=seeded_generator(self._config.seed, "in stratum", number)).double()
            found.append((order[within] + inside) / strata)
        return torch.stack(found)
