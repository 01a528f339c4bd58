"""The factor that a loss carries through the backward pass, so that float16 does not lose small gradients.

float16 knows nothing below 6e-8, and the gradient of a mean over a clip starts near 1e-6. The factor is a power of two:
where nothing overflows, multiplying and dividing by it changes no bit of a float32 gradient. A step that overflows is
done again with half the factor and not left out, so every step trains what it would.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

LOSS_SCALINGS = ("off", "dynamic")
_FIRST, _LEAST, _MOST = 2.0**16, 1.0, 2.0**24
_GOOD_STEPS = 2000
"""after so many steps in a row without an overflow the factor is tried at twice its size, as torch's GradScaler does"""
_NAME = "loss_scale"


class LossScale:
    """The factor of a run, which follows what its gradients have room for. Switched off it is 1 and does nothing."""

    def __init__(self, scaling: str) -> None:
        """`scaling`: one of LOSS_SCALINGS."""
        self._on = scaling == "dynamic"
        self.factor, self._good = _FIRST if self._on else _LEAST, 0

    def raised(self, loss: Tensor) -> Tensor:
        """Returns the scalar loss to go backward from."""
        return loss * self.factor if self._on else loss

    def lower(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Divides the gradients, float32, by the factor."""
        if self._on:
            for parameter in parameters:
                if parameter.grad is not None:
                    parameter.grad.mul_(1.0 / self.factor)

    def fitted(
        self, attempt: Callable[[], tuple[float, float, float]], forget: Callable[[], None]
    ) -> tuple[float, float, float]:
        """Returns what `attempt` does: norm of the gradients, loss, mean timestep.

        Where the loss is finite and its gradients are not, they are forgotten and the step is tried with half the
        factor. Where that never helps they were not too large but wrong, and the factor stays what it was.
        """
        begun = self.factor
        while True:
            norm, loss, timestep = attempt()
            if math.isfinite(norm) or not math.isfinite(loss) or self.factor <= _LEAST:
                break
            forget()
            self.factor, self._good = self.factor / 2, 0
        if not math.isfinite(norm):
            self.factor = begun
        return norm, loss, timestep

    def count(self) -> None:
        """A step was finite: after many of them there may be room for more."""
        self._good += 1
        if self._good >= _GOOD_STEPS:
            self.factor, self._good = min(2 * self.factor, _MOST), 0

    def state(self) -> dict[str, Tensor]:
        """Returns the factor and the good steps since it changed, (2,) float64; nothing where it is switched off."""
        return {_NAME: torch.tensor([self.factor, self._good], dtype=torch.float64)} if self._on else {}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Takes up what `state()` gave."""
        if self._on and _NAME in state:
            factor, good = state[_NAME].tolist()
            self.factor, self._good = factor, int(good)
