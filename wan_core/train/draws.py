"""Clips, captions, noise and sigmas of a micro-step, as pure functions of its number.

They are drawn on the CPU and without the model, so the prefetch thread can draw them ahead of the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..cache import Batch, Batches, Weights
from ..errors import ConfigError
from ..flow import LEAST_SHARE, draw_noise, draw_sigma, is_in_range, resolution_shift, seeded_generator
from ..model import Passage, Route, draw_passages, lengthened
from .config import TrainConfig
from .group import Group
from .objective import NoisedBatch, Target, TargetPass, noise_batch


@dataclass(frozen=True)
class Draw:
    """One micro-batch of this rank and its noise."""

    batch: Batch
    """clips and texts; a dropped caption is the empty prompt"""
    noise: Tensor
    """(B, C, F, H, W) float32"""
    sigma: Tensor
    """(B,)"""
    given: Tensor | None
    """(B,) bool: samples whose first latent frame stays clean; None = no sample"""
    passages: tuple[Passage, ...] = ()
    """for each TREAD route, the tokens that its layers process"""
    target: Target = Target()

    @property
    def timestep(self) -> float:
        """The mean timestep of the batch, 0..1000."""
        return float(self.sigma.mean()) * 1000

    def pinned(self) -> Draw:
        """Returns a copy in pinned memory; needs CUDA."""
        given = None if self.given is None else self.given.pin_memory()
        passages = tuple(passage._replace(kept=passage.kept.pin_memory()) for passage in self.passages)
        noise, sigma, target = self.noise.pin_memory(), self.sigma.pin_memory(), self.target.each(Tensor.pin_memory)
        return Draw(self.batch.pinned(), noise, sigma, given, passages, target)

    def noised(self, device: torch.device) -> NoisedBatch:
        """Returns the micro-batch as the model receives it, on `device`."""
        return noise_batch(self.batch, self.noise, self.sigma, device, self.given, self.passages, self.target)


class Levels:
    """The sigmas of a job, as a function of the draw's number."""

    def __init__(self, config: TrainConfig, sigma_range: tuple[float, float]) -> None:
        """`sigma_range`: range of the model. Raises ConfigError if the settings exclude all of it."""
        self._config = config
        self._range = config.narrowed(sigma_range)
        listed = torch.tensor(config.timestep_list) / 1000
        self._listed = listed[is_in_range(listed, self._range)]
        if len(listed) and not len(self._listed):
            low, high = (1000 * sigma for sigma in self._range)
            raise ConfigError(
                f"No noise level of timestep_list is in the trained range, {low:g} to {high:g}. Add one, or empty "
                "the list."
            )

    def at(self, place: int, latents: Tensor) -> Tensor:
        """Returns the sigmas (B,) of draw number `place`, for latents (B, C, F, H, W)."""
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
        """Raises ConfigError if almost every sigma drawn for latents of `size` (h, w) lies outside the range."""
        config, (low, high) = self._config, self._range
        # These three settings draw inside the range by construction; others draw again until the sigma is inside.
        if len(self._listed) or config.timestep_strata or config.timestep_range == "rescaled":
            return
        sigma = self._draw(100_000, seeded_generator("share of draws"), size, (0.0, 1.0))
        share = float(is_in_range(sigma, self._range).float().mean())
        if share < LEAST_SHARE:
            raise ConfigError(
                f"timestep_sampling {config.timestep_sampling} draws {100 * share:.2g} % of its noise levels in "
                f"{1000 * low:g} to {1000 * high:g}, the trained range. Choose shift or uniform, or another "
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
        """Returns the quantiles of draws `first` to `first + count`, (count,) float64 in 0 to 1.

        Each window of `timestep_strata` draws has one quantile in every stratum, in shuffled order.
        """
        strata = self._config.timestep_strata
        found = []
        for number in range(first, first + count):
            window, within = divmod(number, strata)
            order = torch.randperm(strata, generator=seeded_generator(self._config.seed, "strata", window))
            inside = torch.rand((), generator=seeded_generator(self._config.seed, "in stratum", number)).double()
            found.append((order[within] + inside) / strata)
        return torch.stack(found)


class Draws:
    """The draws of a job, by number.

    Where datasets have class_preservation each micro-step has two: the batch, then the same clips, noise and sigma with
    the captions of the class.
    """

    def __init__(
        self,
        batches: Batches,
        empty_text: Tensor,
        config: TrainConfig,
        group: Group,
        *,
        sigma_range: tuple[float, float],
        first_frame_share: float,
        routes: Sequence[Route] = (),
    ) -> None:
        """`empty_text` (M, D): embedded empty prompt. `routes`: as `placed_routes` returns them."""
        self._routes = routes
        self._batches, self._empty_text, self._config, self._group = batches, empty_text, config, group
        self._levels, self._first_frame_share = Levels(config, sigma_range), first_frame_share
        self.per_micro_step = 2 if batches.any_class else 1
        self.rolls = batches.any_slider
        """whether the base model samples the noised latents from noise, because a slider has no clips"""

    def place(self, number: int) -> int:
        """Returns the place of this rank's draw among all draws; ranks that train one clip together share it."""
        return number * self._group.batches + self._group.batch

    def at(self, number: int) -> Draw:
        """Returns this rank's draw of that number (0 = first)."""
        micro_step, of_class = divmod(number, self.per_micro_step)
        config, place = self._config, self.place(micro_step)
        batch = self._batches.at(micro_step)
        size = len(batch.latents)
        sigma = self._levels.at(place, batch.latents)
        if of_class and batch.class_texts is not None:
            batch = replace(batch, texts=batch.class_texts)
        elif config.caption_dropout and not self.rolls:
            drawn = torch.rand(size, generator=seeded_generator(config.seed, "caption", place))
            if bool((dropped := drawn < config.caption_dropout).any()):
                # Texts differ in length: both are padded to the longer one.
                rows = max(batch.texts.shape[1], len(self._empty_text))
                empty, texts = lengthened(self._empty_text[None], rows), lengthened(batch.texts, rows)
                batch = replace(batch, texts=torch.where(dropped.view(-1, 1, 1), empty, texts))
        noise = draw_noise(batch.latents.shape, seeded_generator(config.seed, "noise", place))
        share = 0.0 if self.rolls else self._first_frame_share
        given = given_first_frames(batch.latents, share, config.seed, place)
        passages = _passages_of(batch, self._routes, config.seed, place)
        weights = self._batches.weights_at(micro_step)[self._group.batch]
        target = self._target(weights, of_class=bool(of_class), slider_texts=batch.slider_texts)
        return Draw(batch, noise, sigma, given, passages, target)

    def most_target_passes(self, number: int) -> int:
        """Returns the number of target passes of a draw on the rank that runs most."""
        micro_step, of_class = divmod(number, self.per_micro_step)
        of_ranks = self._batches.weights_at(micro_step)
        return max(len(self._target(weights, of_class=bool(of_class)).passes) for weights in of_ranks)

    def _target(
        self, weights: Weights, *, of_class: bool, slider_texts: Sequence[Tensor | None] = (None, None)
    ) -> Target:
        """Returns the target of clips with these weights."""
        if weights.slider:  # concept sliders: the base model's prediction, moved from negative to positive
            towards, away = slider_texts
            back = tuple(-scale for scale in weights.slider)
            base = TargetPass((1.0,) * len(back))
            passes = (base, TargetPass(weights.slider, towards), TargetPass(back, away))
            return Target(passes, (0.0,) * len(back))
        kept = weights.of_class if of_class else weights.prior
        prior, guided = tuple(float(weight > 0) for weight in kept), self._config.guidance_target
        if of_class:
            passes, true, counted = (TargetPass(prior),), (0.0,) * len(kept), kept
        else:
            empty = self._empty_text.expand(len(kept), -1, -1)
            away = tuple((1 - guided) * (1 - share) for share in prior)
            passes = (TargetPass(prior), TargetPass(away, empty, adapted=True))
            true = tuple(guided * (1 - share) for share in prior)
            counted = tuple(weight or 1.0 for weight in kept)
        passes = tuple(one for one in passes if one.rows)
        if not passes and not of_class:
            return Target()
        return Target(passes, true, counted, tuple(row for row, share in enumerate(prior) if share))

    def largest(self) -> Draw:
        """Returns the largest possible micro-batch, at sigma 0.5."""
        batch = self._batches.load([self._batches.largest_item] * self._config.batch_size)
        size, frames = len(batch.latents), batch.latents.shape[2]
        given = torch.ones(size, dtype=torch.bool) if self._first_frame_share and frames > 1 else None
        noise = draw_noise(batch.latents.shape, seeded_generator("rehearsal"))
        return Draw(batch, noise, torch.full((size,), 0.5), given, _passages_of(batch, self._routes, "rehearsal"))


def _passages_of(batch: Batch, routes: Sequence[Route], *draw: int | str) -> tuple[Passage, ...]:
    """Returns the passages of placed routes; `draw` names their random generator."""
    frames, height, width = batch.latents.shape[2:]
    # A reference image adds the tokens of one frame.
    reference = batch.conditioning is not None and batch.conditioning.reference is not None
    generators = [seeded_generator("tread", number, *draw) for number in range(len(routes))]
    return draw_passages(routes, frames + reference, (height // 2) * (width // 2), generators)


def given_first_frames(latents: Tensor, share: float, *draw: int | str) -> Tensor | None:
    """Returns the samples (B,) bool whose first latent frame is given; `draw` names the random generator."""
    if not share or latents.shape[2] == 1:  # In a still, no frame would be left to predict.
        return None
    return torch.rand(len(latents), generator=seeded_generator("first frame", *draw)) < share
