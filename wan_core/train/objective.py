"""From a noised batch to the loss that is trained, and to the one that is evaluated."""

from __future__ import annotations

from torch import Tensor

from ..flow import loss_factor, velocity_loss
from ..model import Passage, WanTransformer
from .noised import NoisedBatch, TargetFunction
from .objective_config import ObjectiveConfig

__all__ = ["Objective"]


class Objective:
    """Asks the model for the velocity of a batch, and says how far off it is; scalars in float32."""

    def __init__(self, model: WanTransformer, config: ObjectiveConfig, target: TargetFunction) -> None:
        self._model, self._config, self._target = model, config, target

    def trained(self, batch: NoisedBatch) -> Tensor:
        """Returns the loss that the settings ask for."""
        config = self._config
        return velocity_loss(
            self._predicted(batch, batch.passages),
            self._target(batch),
            batch.trained,
            kind=config.loss_type,
            delta=config.huber_delta,
            factor=loss_factor(batch.sigma, config.loss_weighting),
        )

    def evaluated(self, batch: NoisedBatch) -> Tensor:
        """Returns the mean squared error of all tokens, whatever is trained, so that runs can be compared."""
        return velocity_loss(self._predicted(batch), self._target(batch), batch.trained)

    def _predicted(self, batch: NoisedBatch, passages: tuple[Passage, ...] = ()) -> Tensor:
        return self._model(batch.noised, batch.timestep, batch.text, batch.conditioning, passages)
