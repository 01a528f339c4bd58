"""Makes of a noised batch the loss that is trained, and the one that is evaluated.

Clips that keep what the model knows (prior preservation) have a target of their own: what the base model predicts for
the same noise, noise level and caption, on the same tokens. Where the adapters change nothing, their error is 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..flow import loss_factor, velocity_loss
from ..lora import without_adapters
from ..model import Passage, WanTransformer, sent
from .noised import NoisedBatch, TargetFunction
from .objective_config import ObjectiveConfig


class TrainedLoss(NamedTuple):
    """The loss that a micro-batch is trained on."""

    loss: Tensor
    """() float32, with gradients"""
    prior: Tensor | None
    """() the mean error of its clips that keep what the model knows, before they are weighed; None without such"""
    prior_clips: int = 0


class Objective:
    """Asks the model for the velocity of a batch, and says how far off it is; scalars in float32."""

    def __init__(self, model: WanTransformer, config: ObjectiveConfig, target: TargetFunction) -> None:
        self._model, self._config, self._target = model, config, target

    def trained(self, batch: NoisedBatch) -> TrainedLoss:
        """Returns the loss that the settings ask for."""
        config = self._config
        target, factor = self._target(batch), loss_factor(batch.sigma, config.loss_weighting)
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
        return velocity_loss(self._predicted(batch), self._target(batch), batch.trained)

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
