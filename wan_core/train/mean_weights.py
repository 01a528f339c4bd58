"""The mean of the adapters over past steps (EMA): made beside the training, saved with it, and judged in its place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

_PREFIX = "ema."
_COUNT = "ema_updates"


class MeanWeights:
    """An exponential mean of named weights.

    Its memory grows with its age, as min(decay, (1 + n) / (10 + n)) after n updates, so that the start does not stay in
    it for as long as the decay lasts.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], decay: float) -> None:
        """`decay`: 0.99 is about the last 100 updates."""
        self._parameters, self._decay = parameters, decay
        self._updates = 0
        self._mean = {name: p.detach().clone() for name, p in parameters.items()}

    def update(self) -> None:
        """Takes in the present weights."""
        self._updates += 1
        decay = min(self._decay, (1 + self._updates) / (10 + self._updates))
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                self._mean[name].lerp_(parameter, 1 - decay)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Inside, the weights are the mean; afterwards the trained ones, exactly."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def state(self) -> dict[str, Tensor]:
        """Returns CPU copies of what it holds."""
        mean = {_PREFIX + name: value.to("cpu", copy=True) for name, value in self._mean.items()}
        return mean | {_COUNT: torch.tensor(self._updates)}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Takes up what `state()` gave; without it the mean begins with the present weights."""
        for name, parameter in self._parameters.items():
            self._mean[name].copy_(state.get(_PREFIX + name, parameter.detach()))
        self._updates = int(state.get(_COUNT, torch.tensor(0)))

    def _swap(self) -> None:
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                kept = parameter.detach().clone()
                parameter.copy_(self._mean[name])
                self._mean[name].copy_(kept)
