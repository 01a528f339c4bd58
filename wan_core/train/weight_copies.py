"""Copies of the adapter weights: in host memory for an offloaded optimizer, and as a mean over steps (EMA)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ..placement import host_memory_of

_ALIGNED = 16
"""values; the rounding of a matrix product may depend on the alignment of its operands"""
_PREFIX = "ema."
_COUNT = "ema_updates"


class HostWeights:
    """Host copies of named weights, which an offloaded optimizer steps.

    The model's weights stay authoritative: each step copies them with their final gradients and copies the result back.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        """`parameters`: float32 weights by name."""
        self._parameters = parameters
        self._gradients: dict[str, Tensor] = {}
        self.copies = {name: nn.Parameter(p.detach().to("cpu", copy=True)) for name, p in parameters.items()}

    def take(self) -> None:
        """Copies weights and gradients to the host; a gradient of None stays None."""
        if not self._gradients:
            self._allocate()
        for name, parameter in self._parameters.items():
            copy = self.copies[name]
            copy.data.copy_(parameter.detach())
            copy.grad = None if parameter.grad is None else self._gradients[name].copy_(parameter.grad)

    @contextmanager
    def synced(self) -> Iterator[None]:
        """Inside, the copies equal the weights and may be changed; afterwards the weights equal the copies."""
        self.take()
        yield
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.copy_(self.copies[name])

    def forget(self) -> None:
        """Frees the memory; the next `take` allocates it."""
        self._gradients = {}
        for copy in self.copies.values():
            copy.grad, copy.data = None, torch.zeros_like(copy.data)  # takes no memory until it is written to

    def _allocate(self) -> None:
        """Allocates copies and gradients in memory that each device copies asynchronously (pinned)."""
        for device in {p.device for p in self._parameters.values()}:
            mine = {name: p for name, p in self._parameters.items() if p.device == device}
            sizes = [-(-p.numel() // _ALIGNED) * _ALIGNED for p in mine.values()]
            room = host_memory_of(device, 2 * 4 * sum(sizes)).view(torch.float32).split([*sizes, *sizes])
            for (name, p), weight, gradient in zip(mine.items(), room, room[len(sizes) :], strict=False):
                self.copies[name].data = weight[: p.numel()].view(p.shape)
                self._gradients[name] = gradient[: p.numel()].view(p.shape)


class MeanWeights:
    """EMA of named weights, saved, evaluated and previewed in their place.

    The decay after n updates is min(decay, (1 + n) / (10 + n)), so that the initial weights fade early.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], decay: float) -> None:
        """`decay`: 0.99 is about the last 100 updates."""
        self._parameters, self._decay = parameters, decay
        self._updates = 0
        self._mean = {name: p.detach().clone() for name, p in parameters.items()}

    def update(self) -> None:
        """Adds the current weights to the mean."""
        self._updates += 1
        decay = min(self._decay, (1 + self._updates) / (10 + self._updates))
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                self._mean[name].lerp_(parameter, 1 - decay)

    def into_weights(self) -> None:
        """Overwrites the weights with the mean."""
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.copy_(self._mean[name])

    def state(self) -> dict[str, Tensor]:
        """Returns the mean and its count of updates, as CPU copies."""
        mean = {_PREFIX + name: value.to("cpu", copy=True) for name, value in self._mean.items()}
        return mean | {_COUNT: torch.tensor(self._updates)}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Loads `state()`; a state without EMA starts it from the current weights."""
        for name, parameter in self._parameters.items():
            self._mean[name].copy_(state.get(_PREFIX + name, parameter.detach()))
        self._updates = int(state.get(_COUNT, torch.tensor(0)))
