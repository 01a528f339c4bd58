"""Adapter weights in host memory, beside those of the model: an optimizer steps them there, and holds its own there.

The model's weights are the ones that count. They are taken before each step, with their gradients as those are by then
(of all micro-batches and ranks, clipped and found finite), and get back what the step made of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ..placement import host_memory_of

_ALIGNED = 16
"""values: products of matrices may round by where they begin"""


class HostWeights:
    """A copy in host memory of named weights, wherever those lie."""

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
