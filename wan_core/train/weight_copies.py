"""Copies of the adapter weights that train or count in their place: in host memory, and as a mean over steps (EMA)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ..placement import host_memory_of

_ALIGNED = 16
"""values: products of matrices may round by where they begin"""
_PREFIX = "ema."
_COUNT = "ema_updates"


class HostWeights:
    """A copy of named weights in host memory, where an optimizer steps them and holds its own state.

    The weights of the model are the ones that count. Each step takes them with their gradients, which are by then those
    of all micro-batches and ranks, clipped and finite, and writes the updated values back.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        """`parameters`: float32 weights by name."""
        self._parameters = parameters
        self._gradients: dict[str, Tensor] = {}
        self.copies = {name: nn.Parameter(p.detach().to("cpu", copy=True)) for name, p in parameters.items()}

    def take(self) -> None:
        """Makes the copies equal to the weights, and their gradients to those of the weights; None stays None."""
        if not self._gradients:
            self._find_room()
        for name, parameter in self._parameters.items():
            copy = self.copies[name]
            copy.data.copy_(parameter.detach())
            copy.grad = None if parameter.grad is None else self._gradients[name].copy_(parameter.grad)

    @contextmanager
    def at_hand(self) -> Iterator[None]:
        """Inside, the copies are what an optimizer may change; the weights follow, unless it breaks."""
        self.take()
        yield
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.copy_(self.copies[name])

    def forget(self) -> None:
        """Gives the memory back; `take` finds it anew."""
        self._gradients = {}
        for copy in self.copies.values():
            copy.grad, copy.data = None, torch.zeros_like(copy.data)  # the system gives memory when it is written to

    def _find_room(self) -> None:
        """Lays copies and gradients where the devices of the weights copy by themselves."""
        for device in {p.device for p in self._parameters.values()}:
            mine = {name: p for name, p in self._parameters.items() if p.device == device}
            sizes = [-(-p.numel() // _ALIGNED) * _ALIGNED for p in mine.values()]
            room = host_memory_of(device, 2 * 4 * sum(sizes)).view(torch.float32).split([*sizes, *sizes])
            for (name, p), weight, gradient in zip(mine.items(), room, room[len(sizes) :], strict=False):
                self.copies[name].data = weight[: p.numel()].view(p.shape)
                self._gradients[name] = gradient[: p.numel()].view(p.shape)


class MeanWeights:
    """An exponential mean of named weights over past steps (EMA), saved with the run and judged in place of them.

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
