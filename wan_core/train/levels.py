"""Draws the noise levels of micro-batches, as the settings say: each by itself, or spread evenly over several."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import ConfigError
from ..flow import LEAST_SHARE, draw_sigma, is_in_range, resolution_shift, seeded_generator
from .config import TrainConfig


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
        low, high = self._range
        size = (latents.shape[-2], latents.shape[-1])
        if config.timestep_range == "rescaled":
            return low + (high - low) * self._draw(count, generator, size, (0.0, 1.0), parts)
        return self._draw(count, generator, size, self._range, parts)

    def require_draws(self, size: tuple[int, int]) -> None:
        """Raises ConfigError where almost none of the levels drawn for latents of `size` (h, w) is trained."""
        config, (low, high) = self._config, self._range
        if len(self._listed) or config.timestep_strata or config.timestep_range == "rescaled":
            return
        sigma = self._draw(100_000, seeded_generator("share of draws"), size, (0.0, 1.0))
        share = float(is_in_range(sigma, self._range).float().mean())
        if share < LEAST_SHARE:
            raise ConfigError(
                f"timestep_sampling {config.timestep_sampling} draws {100 * share:.2g} % of its noise levels in "
                f"{1000 * low:g} to {1000 * high:g}, what is trained here. Choose shift or uniform, or another "
                "logit_mean or discrete_flow_shift."
            )

    def _draw(
        self,
        count: int,
        generator: torch.Generator,
        size: tuple[int, int],
        sigma_range: tuple[float, float],
        parts: Tensor | None = None,
    ) -> Tensor:
        config = self._config
        by_size = resolution_shift(config.timestep_sampling, *size)
        return draw_sigma(
            count,
            generator,
            sampling=config.timestep_sampling,
            shift=config.discrete_flow_shift if by_size is None else by_size,
            sigmoid_scale=config.sigmoid_scale,
            logit_mean=config.logit_mean,
            logit_std=config.logit_std,
            mode_scale=config.mode_scale,
            sigma_min=sigma_range[0],
            sigma_max=sigma_range[1],
            parts=parts,
        )

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
