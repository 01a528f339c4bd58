"""Noised batch, target, and the loss of training and evaluation.

The target is the true velocity, or a sum of it and of predictions without gradients for the same noise, sigma and
tokens (`TargetPass`): of the base model (prior preservation), or for the empty prompt (guidance target).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from ..cache import Batch
from ..flow import add_noise, loss_factor, velocity_loss, velocity_target
from ..lora import without_adapters
from ..model import Conditioning, Passage, WanTransformer, sent, shared_out
from ..model.transformer import grid_of
from .objective_config import ObjectiveConfig


@dataclass(frozen=True)
class TargetPass:
    """A forward pass without gradients whose prediction is a part of the target."""

    shares: tuple[float, ...]
    """(B,) factor of the prediction in each clip's target; 0: the clip is not in the pass"""
    text: Tensor | None = None
    """(B, L, D); None: the captions of the batch"""
    adapted: bool = False
    """with the trained adapters; False: the base model"""

    @property
    def rows(self) -> list[int]:
        """The clips in the pass."""
        return [place for place, share in enumerate(self.shares) if share]

    def on(self, device: torch.device) -> TargetPass:
        """Returns the pass with its text on `device`."""
        return self if self.text is None else replace(self, text=sent(self.text, device))


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
    prior: tuple[float, ...] = ()
    """(B,) loss weights of prior preservation clips, 0 for other clips; () without any"""
    target_passes: tuple[TargetPass, ...] = ()
    true_shares: tuple[float, ...] = ()
    """(B,) factor of the true velocity in each clip's target; () = 1"""

    def of_pass(self, one: TargetPass) -> NoisedBatch:
        """Returns the clips and captions of a target pass."""
        return (self if one.text is None else replace(self, text=one.text)).only(one.rows)

    def only(self, rows: Sequence[int]) -> NoisedBatch:
        """Returns the clips at `rows`; the batch itself if `rows` are all clips."""
        if len(rows) == len(self.latent):
            return self
        places = sent(torch.tensor(rows), self.latent.device)
        tensors = {
            name: value.index_select(0, places)
            for name in ("latent", "noise", "noised", "sigma", "text", "given", "loss_mask")
            if (value := getattr(self, name)) is not None
        }
        conditioning = None if self.conditioning is None else self.conditioning.only(places)
        prior = tuple(self.prior[row] for row in rows) if self.prior else ()
        return replace(self, **tensors, conditioning=conditioning, prior=prior)

    @property
    def prior_rows(self) -> list[int]:
        """Indices of the prior preservation clips."""
        return [place for place, weight in enumerate(self.prior) if weight]

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
        """Tokens of the context streams of a clip."""
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
    target_passes: tuple[TargetPass, ...] = (),
    true_shares: tuple[float, ...] = (),
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
    target_passes = tuple(one.on(device) for one in target_passes)
    given_to_model = (latent, noise, noised, sigma, texts, conditioning, given, mask, passages)
    return NoisedBatch(*given_to_model, batch.prior, target_passes, true_shares)


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
        # Before the pass with gradients, so that the activations of both passes are never held at once.
        parts = [self._part(batch, one) for one in batch.target_passes]
        return self.of_prediction(batch, self._predicted(batch, batch.passages), parts)

    def of_prediction(self, batch: NoisedBatch, predicted: Tensor, parts: Sequence[Tensor]) -> TrainedLoss:
        """Returns the training loss of predictions (B, C, F, H, W).

        `parts`: the prediction of each target pass for its clips, float32. All tensors are on one device.
        """
        config, prior = self._config, batch.prior_rows
        target, factor = _target(batch, parts), loss_factor(batch.sigma, config.loss_weighting)
        kind, delta = config.loss_type, config.huber_delta
        factor = self._weighed(batch, factor)
        loss = velocity_loss(predicted, target, batch.trained, kind=kind, delta=delta, factor=factor)
        if not prior:
            return TrainedLoss(loss, None)
        some = batch.only(prior)
        error = velocity_loss(predicted[prior].detach(), target[prior], some.trained, kind=kind, delta=delta)
        return TrainedLoss(loss, error, len(prior))

    def evaluated(self, batch: NoisedBatch) -> Tensor:
        """Returns the mean squared error over all tokens, independent of loss settings, so that runs compare."""
        return velocity_loss(self._predicted(batch), true_velocity(batch), batch.trained)

    def _part(self, batch: NoisedBatch, one: TargetPass) -> Tensor:
        base = contextlib.nullcontext() if one.adapted else without_adapters(self._model)
        with torch.no_grad(), base, shared_out(self._model):
            return self._predicted(batch.of_pass(one), batch.passages).float()

    def _weighed(self, batch: NoisedBatch, factor: Tensor | None) -> Tensor | None:
        """Returns the factor of each clip's error (B,), times the weights of prior preservation clips."""
        weights = torch.tensor([weight or 1.0 for weight in batch.prior])
        if bool((weights == 1).all()):
            return factor
        weights = sent(weights, batch.sigma.device)
        return weights if factor is None else factor * weights

    def _predicted(self, batch: NoisedBatch, passages: tuple[Passage, ...] = ()) -> Tensor:
        return self._model(batch.noised, batch.timestep, batch.text, batch.conditioning, passages)


def _target(batch: NoisedBatch, parts: Sequence[Tensor]) -> Tensor:
    """Returns the target (B, C, F, H, W), with the predictions of the batch's target passes."""
    target = true_velocity(batch)

    def each(shares: Sequence[float]) -> Tensor:
        return sent(torch.tensor(shares), target.device).view(-1, 1, 1, 1, 1)

    if batch.true_shares:
        target = each(batch.true_shares) * target
    for one, part in zip(batch.target_passes, parts, strict=True):
        rows = sent(torch.tensor(one.rows), target.device)
        target = target.index_add(0, rows, each([one.shares[row] for row in one.rows]) * part)
    return target
