"""Noised batch, target, and the loss of training and evaluation.

The target is the true velocity, or a sum of it and of predictions without gradients for the same noise, sigma and
tokens (`TargetPass`): of the base model (prior preservation), or for the empty prompt (guidance target).
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from ..cache import Batch
from ..flow import add_noise, loss_factor, simple_sigmas, velocity_loss, velocity_target
from ..lora import without_adapters
from ..model import Conditioning, Passage, WanTransformer, sent, shared_out, tokens_behind
from ..model.transformer import grid_of
from .objective_config import ObjectiveConfig

ROLL_STEPS = 8
"""sampling steps from noise to a clean latent, of which a slider takes those above its noise level"""


@dataclass(frozen=True)
class TargetPass:
    """A forward pass without gradients whose prediction is a part of the target."""

    shares: tuple[float, ...]
    """(B,) factor of the prediction in each clip's target; 0: the clip is not in the pass"""
    text: Tensor | None = None
    """(B, L, D) prompts of the pass; None: the captions of the batch"""
    adapted: bool = False
    """whether the trained adapters act in the pass; False: the base model"""

    @property
    def rows(self) -> list[int]:
        """The clips in the pass."""
        return [place for place, share in enumerate(self.shares) if share]


@dataclass(frozen=True)
class Target:
    """The target of each clip of a micro-batch, and its weight in the loss."""

    passes: tuple[TargetPass, ...] = ()
    true_shares: tuple[float, ...] = ()
    """(B,) factor of the true velocity in the target; () = 1 for all"""
    weights: tuple[float, ...] = ()
    """(B,) weight of each clip in the loss; () = 1 for all"""
    prior_rows: tuple[int, ...] = ()
    """the clips of prior preservation"""

    @property
    def counts(self) -> bool:
        """Whether a clip has a weight in the loss."""
        return not self.weights or any(self.weights)

    def each(self, move: Callable[[Tensor], Tensor]) -> Target:
        """Returns the target with `move` applied to its tensors."""
        passes = (one if one.text is None else replace(one, text=move(one.text)) for one in self.passes)
        return replace(self, passes=tuple(passes))


@dataclass(frozen=True)
class NoisedBatch:
    """One micro-batch as the model receives it, on the model's first device."""

    latent: Tensor
    """(B, C, F, H, W) float32, clean"""
    noise: Tensor
    noised: Tensor
    sigma: Tensor
    """(B,)"""
    text: Tensor
    """(B, L, D)"""
    conditioning: Conditioning | None = None
    given: Tensor | None = None
    """(B,) bool: latent frame 0 is clean (TI2V image-to-video); None = for no sample"""
    loss_mask: Tensor | None = None
    """(B, 1, F, H, W) weights of the loss; None = 1 everywhere"""
    passages: tuple[Passage, ...] = ()
    """TREAD: the tokens that skip layers"""
    target: Target = Target()

    def of_pass(self, one: TargetPass) -> NoisedBatch:
        """Returns the clips and captions of a target pass."""
        return (self if one.text is None else replace(self, text=one.text)).only(one.rows)

    def only(self, rows: Sequence[int]) -> NoisedBatch:
        """Returns the clips at `rows`, with the target of the complete batch; the batch itself for all rows."""
        if len(rows) == len(self.latent):
            return self
        places = sent(torch.tensor(rows), self.latent.device)
        tensors = {
            name: value.index_select(0, places)
            for name in ("latent", "noise", "noised", "sigma", "text", "given", "loss_mask")
            if (value := getattr(self, name)) is not None
        }
        conditioning = None if self.conditioning is None else self.conditioning.only(places)
        return replace(self, **tensors, conditioning=conditioning)

    @property
    def timestep(self) -> Tensor:
        """(B,), or (B, F) with 0 for given frames, as TI2V-5B is trained."""
        timestep = self.sigma * 1000
        if self.given is None:
            return timestep
        rows = timestep[:, None].repeat(1, self.latent.shape[2])
        rows[:, 0] = torch.where(self.given, 0.0, timestep)
        return rows

    @property
    def time_rows(self) -> int:
        """Timesteps per clip."""
        return 1 if self.given is None else self.latent.shape[2]

    @property
    def text_rows(self) -> int:
        """Text rows per clip."""
        return self.text.shape[1]

    @property
    def image_rows(self) -> int:
        """CLIP tokens per clip; 0 for a model without image input."""
        image = self.conditioning.image_tokens if self.conditioning is not None else None
        return 0 if image is None else image.shape[1]

    @property
    def context_tokens(self) -> int:
        """Tokens of the context streams of a clip, or of those behind the video (S2V)."""
        if self.conditioning is not None and self.conditioning.pose_video is not None:
            return tokens_behind(grid_of(self.latent), self.conditioning)
        streams = self.conditioning.context if self.conditioning is not None else ()
        return sum(math.prod(grid_of(stream)) for stream in streams)

    @property
    def trained(self) -> Tensor | None:
        """Loss weights, 0 for given frames: (B, 1, F, 1, 1), or (B, 1, F, H, W) with a mask; None = 1 everywhere."""
        if self.given is None:
            return self.loss_mask
        weight = torch.ones(*self.latent.shape[:3:2], device=self.latent.device)
        weight[:, 0] = torch.where(self.given, 0.0, 1.0)
        frames = weight[:, None, :, None, None]
        return frames if self.loss_mask is None else frames * self.loss_mask


def true_velocity(batch: NoisedBatch) -> Tensor:
    """Returns the flow-matching target, noise - latent."""
    return velocity_target(batch.latent, batch.noise)


def noise_batch(
    batch: Batch,
    noise: Tensor,
    sigma: Tensor,
    device: torch.device,
    given: Tensor | None = None,
    passages: tuple[Passage, ...] = (),
    target: Target | None = None,
) -> NoisedBatch:
    """Returns `batch` noised on `device`: noise (B, C, F, H, W), sigma (B,); `given` (B,) bool on the CPU."""
    latent, noise, sigma, texts = (sent(t, device) for t in (batch.latents, noise, sigma, batch.texts))
    noised = add_noise(latent, noise, sigma)
    if given is not None and not bool(given.any()):  # on the CPU, so that the step does not wait for the GPU
        given = None
    if given is not None:
        given = sent(given, device)
        noised[:, :, 0] = torch.where(given[:, None, None, None], latent[:, :, 0], noised[:, :, 0])
    conditioning = batch.conditioning.to(device) if batch.conditioning is not None else None
    mask = sent(batch.loss_mask, device) if batch.loss_mask is not None else None
    passages = tuple(passage._replace(kept=sent(passage.kept, device)) for passage in passages)
    target = (target or Target()).each(lambda text: sent(text, device))
    return NoisedBatch(latent, noise, noised, sigma, texts, conditioning, given, mask, passages, target)


class TrainedLoss(NamedTuple):
    """Training loss of a micro-batch."""

    loss: Tensor
    """float32 scalar, with gradients"""
    prior: Tensor | None
    """scalar, unweighted mean error of the prior preservation clips; None without any"""
    prior_clips: int = 0


class Objective:
    """Losses of a model's predicted velocity; float32 scalars."""

    def __init__(self, model: WanTransformer, config: ObjectiveConfig) -> None:
        self._model, self._config = model, config

    def trained(self, batch: NoisedBatch) -> TrainedLoss:
        """Runs the model; returns the training loss by the settings."""
        # Target passes run before the pass with gradients, so that the activations of both are never held together.
        parts = [self._part(batch, one) for one in batch.target.passes]
        return self.of_prediction(batch, self._predicted(batch, batch.passages), parts)

    @torch.no_grad()
    def rolled(self, batch: NoisedBatch, lowest: float) -> NoisedBatch:
        """Returns the batch with noised latents that the base model makes from its noise, in ROLL_STEPS euler steps
        down to each clip's sigma.

        `lowest`: steps end there; the lowest sigma, or 0 where ranks run as many.
        """
        latent, sigma = batch.noise, batch.sigma
        levels = simple_sigmas(ROLL_STEPS, self._config.discrete_flow_shift or 1.0).tolist()
        with without_adapters(self._model), shared_out(self._model):
            for here, there in itertools.pairwise(levels):
                if here <= lowest:
                    break
                now, then = sigma.clamp(min=here), sigma.clamp(min=there)
                velocity = self._predicted(replace(batch, noised=latent, sigma=now)).float()
                latent = latent + (then - now).view(-1, 1, 1, 1, 1) * velocity
        return replace(batch, noised=latent)

    def of_prediction(self, batch: NoisedBatch, predicted: Tensor, parts: Sequence[Tensor]) -> TrainedLoss:
        """Returns the training loss of predictions (B, C, F, H, W).

        `parts`: the prediction of each target pass for its clips, float32. All tensors are on one device.
        """
        config, prior = self._config, batch.target.prior_rows
        target, factor = _target(batch, parts), loss_factor(batch.sigma, config.loss_weighting)
        kind, delta = config.loss_type, config.huber_delta
        weights = torch.tensor(batch.target.weights)
        if not bool((weights == 1).all()):
            weights = sent(weights, batch.sigma.device)
            factor = weights if factor is None else factor * weights
        loss = velocity_loss(predicted, target, batch.trained, kind=kind, delta=delta, factor=factor)
        if not prior:
            return TrainedLoss(loss, None)
        some = batch.only(prior)
        rows = list(prior)
        error = velocity_loss(predicted[rows].detach(), target[rows], some.trained, kind=kind, delta=delta)
        return TrainedLoss(loss, error, len(prior))

    def evaluated(self, batch: NoisedBatch) -> Tensor:
        """Returns the mean squared error over all tokens, independent of loss settings, so that runs compare."""
        return velocity_loss(self._predicted(batch), true_velocity(batch), batch.trained)

    def _part(self, batch: NoisedBatch, one: TargetPass) -> Tensor:
        base = contextlib.nullcontext() if one.adapted else without_adapters(self._model)
        with torch.no_grad(), base, shared_out(self._model):
            return self._predicted(batch.of_pass(one), batch.passages).float()

    def _predicted(self, batch: NoisedBatch, passages: tuple[Passage, ...] = ()) -> Tensor:
        return self._model(batch.noised, batch.timestep, batch.text, batch.conditioning, passages)


def _target(batch: NoisedBatch, parts: Sequence[Tensor]) -> Tensor:
    """Returns the target (B, C, F, H, W), with the predictions of the batch's target passes."""
    target = true_velocity(batch)

    def each(shares: Sequence[float]) -> Tensor:
        return sent(torch.tensor(shares), target.device).view(-1, 1, 1, 1, 1)

    if batch.target.true_shares:
        target = each(batch.target.true_shares) * target
    for one, part in zip(batch.target.passes, parts, strict=True):
        rows = sent(torch.tensor(one.rows), target.device)
        target = target.index_add(0, rows, each([one.shares[row] for row in one.rows]) * part)
    return target
