"""A noised batch, what the model should predict for it, and the loss that is trained or evaluated.

Clips that keep what the model knows (prior preservation) have a target of their own: what the base model predicts for
the same noise, noise level and caption, on the same tokens. Where the adapters change nothing, their error is 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from ..cache import Batch
from ..flow import add_noise, loss_factor, velocity_loss, velocity_target
from ..lora import without_adapters
from ..model import Conditioning, Passage, WanTransformer, sent
from .objective_config import ObjectiveConfig


@dataclass(frozen=True)
class NoisedBatch:
    """One micro-batch as the model sees it, on the model's first device."""

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
    """(B,) bool: latent frame 0 is the clean one (TI2V image-to-video); None when it is for none"""
    loss_mask: Tensor | None = None
    """(B, 1, F, H, W) weights of the loss; None when every value counts alike"""
    passages: tuple[Passage, ...] = ()
    """where a share of the tokens passes by layers while it is trained"""
    prior: tuple[float, ...] = ()
    """of each clip that is trained towards what the base model predicts, its weight in the loss, 0 of the others; ()
    when none is
    """

    def only(self, rows: Sequence[int]) -> NoisedBatch:
        """Returns the clips in those places; the batch itself where that is all of them."""
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
    def timestep(self) -> Tensor:
        """(B,), or (B, F) with 0 for given frames: one timestep per latent frame, as TI2V-5B is trained."""
        timestep = self.sigma * 1000
        if self.given is None:
            return timestep
        rows = timestep[:, None].repeat(1, self.latent.shape[2])
        rows[:, 0] = torch.where(self.given, 0.0, timestep)
        return rows

    @property
    def time_rows(self) -> int:
        """How many timesteps a clip has."""
        return 1 if self.given is None else self.latent.shape[2]

    @property
    def text_rows(self) -> int:
        """How many rows of text are computed for a clip."""
        return self.text.shape[1]

    @property
    def image_rows(self) -> int:
        """How many CLIP tokens a clip has; 0 for a model that reads no image."""
        image = self.conditioning.image_tokens if self.conditioning is not None else None
        return 0 if image is None else image.shape[1]

    @property
    def trained(self) -> Tensor | None:
        """(B, 1, F, 1, 1): 1 for latent frames whose prediction counts, 0 for given ones; None when all count. With a
        loss mask (B, 1, F, H, W), its weights, and 0 for given frames.
        """
        if self.given is None:
            return self.loss_mask
        weight = torch.ones(*self.latent.shape[:3:2], device=self.latent.device)
        weight[:, 0] = torch.where(self.given, 0.0, 1.0)
        frames = weight[:, None, :, None, None]
        return frames if self.loss_mask is None else frames * self.loss_mask


def true_velocity(batch: NoisedBatch) -> Tensor:
    """The flow-matching target noise - latent."""
    return velocity_target(batch.latent, batch.noise)


def noise_batch(
    batch: Batch,
    noise: Tensor,
    sigma: Tensor,
    device: torch.device,
    given: Tensor | None = None,
    passages: tuple[Passage, ...] = (),
) -> NoisedBatch:
    """Noise `batch` on `device`: noise (B, C, F, H, W), sigma (B,).

    `given` (B,) bool on the CPU keeps the first latent frame of those samples clean.
    """
    latent, noise, sigma, texts = (sent(t, device) for t in (batch.latents, noise, sigma, batch.texts))
    noised = add_noise(latent, noise, sigma)
    if given is not None and not bool(given.any()):
        given = None
    if given is not None:
        given = sent(given, device)
        noised[:, :, 0] = torch.where(given[:, None, None, None], latent[:, :, 0], noised[:, :, 0])
    conditioning = batch.conditioning.to(device) if batch.conditioning is not None else None
    mask = sent(batch.loss_mask, device) if batch.loss_mask is not None else None
    passages = tuple(passage._replace(kept=sent(passage.kept, device)) for passage in passages)
    return NoisedBatch(latent, noise, noised, sigma, texts, conditioning, given, mask, passages, batch.prior)


class TrainedLoss(NamedTuple):
    """The loss that a micro-batch is trained on."""

    loss: Tensor
    """() float32, with gradients"""
    prior: Tensor | None
    """() the mean error of its clips that keep what the model knows, before they are weighed; None without such"""
    prior_clips: int = 0


class Objective:
    """Asks the model for the velocity of a batch, and says how far off it is; scalars in float32."""

    def __init__(self, model: WanTransformer, config: ObjectiveConfig) -> None:
        self._model, self._config = model, config

    def trained(self, batch: NoisedBatch) -> TrainedLoss:
        """Returns the loss that the settings ask for."""
        config = self._config
        target, factor = true_velocity(batch), loss_factor(batch.sigma, config.loss_weighting)
        prior = [place for place, weight in enumerate(batch.prior) if weight]
        if prior:
            # Before the pass with gradients, so that what the two hold is never held together.
            target, factor = self._towards_base(batch, prior, target), self._weighed(batch, factor)
        predicted = self._predicted(batch, batch.passages)
        kind, delta = config.loss_type, config.huber_delta
        loss = velocity_loss(predicted, target, batch.trained, kind=kind, delta=delta, factor=factor)
        if not prior:
            return TrainedLoss(loss, None)
        some = batch.only(prior)
        error = velocity_loss(predicted[prior].detach(), target[prior], some.trained, kind=kind, delta=delta)
        return TrainedLoss(loss, error, len(prior))

    def evaluated(self, batch: NoisedBatch) -> Tensor:
        """Returns the mean squared error of all tokens, whatever is trained, so that runs can be compared."""
        return velocity_loss(self._predicted(batch), true_velocity(batch), batch.trained)

    def _towards_base(self, batch: NoisedBatch, prior: Sequence[int], target: Tensor) -> Tensor:
        """Returns `target` (B, C, F, H, W) with what the base model predicts in the places of `prior`."""
        with torch.no_grad(), without_adapters(self._model):
            base = self._predicted(batch.only(prior), batch.passages).float()
        if len(prior) == len(target):
            return base
        target = target.clone()
        target[list(prior)] = base
        return target

    def _weighed(self, batch: NoisedBatch, factor: Tensor | None) -> Tensor | None:
        """Returns the factor of each clip's error (B,), with the weights of those in `prior`."""
        weights = torch.tensor([weight or 1.0 for weight in batch.prior])
        if bool((weights == 1).all()):
            return factor
        weights = sent(weights, batch.sigma.device)
        return weights if factor is None else factor * weights

    def _predicted(self, batch: NoisedBatch, passages: tuple[Passage, ...] = ()) -> Tensor:
        return self._model(batch.noised, batch.timestep, batch.text, batch.conditioning, passages)
