"""Copies of the adapter weights: in host memory for an offloaded optimizer, and as a mean over steps (EMA)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ..placement import Copies, copies_of, memory_to_copy

_ALIGNED = 16
"""alignment in values: the rounding of a matrix product may depend on its operands' alignment"""
_PREFIX = "ema."
_COUNT = "ema_updates"


class HostWeights:
    """Host copies of named weights, which an offloaded optimizer steps.

    The model's weights stay authoritative: each step copies them and their final gradients, and copies the result back.
    The host does not wait for the copies: any value that it reads from a device after `take` arrives after them.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        """`parameters`: float32 weights by name."""
        self._parameters = parameters
        self._gradients: dict[str, Tensor] = {}
        self._copies: dict[torch.device, Copies] = {}
        self.copies = {name: nn.Parameter(p.detach().to("cpu", copy=True)) for name, p in parameters.items()}

    @property
    def remarks(self) -> dict[str, str]:
        """Warnings on host memory, one for each topic."""
        return {topic: text for copies in self._copies.values() for topic, text in copies.remarks.items()}

    def take(self, reader: torch.device) -> None:
        """Starts to copy weights and gradients to the host; a gradient of None stays None.

        The copies are complete once the host has read a value that the device `reader` computes after this call.
        """
        if not self._gradients:
            self._allocate()
        for device, names in self._by_device().items():
            pairs = [(self._parameters[name].detach(), self.copies[name].data) for name in names]
            for name in names:
                gradient = self._parameters[name].grad
                self.copies[name].grad = None if gradient is None else self._gradients[name]
                if gradient is not None:
                    pairs.append((gradient, self._gradients[name]))
            copying = self._copies[device].start_all(pairs)
            for waits in {device, reader}:
                self._copies[device].wait(copying, waits)

    def give_back(self) -> None:
        """Starts to copy the host copies to the weights; later work of the device waits for that. The host copies must
        not change until the next `take` is complete."""
        for device, names in self._by_device().items():
            pairs = [(self.copies[name].data, self._parameters[name].detach()) for name in names]
            self._copies[device].wait(self._copies[device].start_all(pairs))

    def forget(self) -> None:
        """Frees the memory; the next `take` allocates it."""
        self._gradients = {}
        for copy in self.copies.values():
            copy.grad, copy.data = None, torch.zeros_like(copy.data)  # Zeros take no memory until they are written to.

    def _allocate(self) -> None:
        """Allocates copies and gradients in memory that each device copies asynchronously (pinned)."""
        for device, names in self._by_device().items():
            mine = [self._parameters[name] for name in names]
            sizes = [-(-p.numel() // _ALIGNED) * _ALIGNED for p in mine]
            copies = self._copies[device] = copies_of(device)
            room = memory_to_copy(copies, 2 * 4 * sum(sizes)).view(torch.float32).split([*sizes, *sizes])
            for name, p, weight, gradient in zip(names, mine, room, room[len(sizes) :], strict=False):
                self.copies[name].data = weight[: p.numel()].view(p.shape)
                self._gradients[name] = gradient[: p.numel()].view(p.shape)

    def _by_device(self) -> dict[torch.device, list[str]]:
        found: dict[torch.device, list[str]] = {}
        for name, parameter in self._parameters.items():
            found.setdefault(parameter.device, []).append(name)
        return found


class MeanWeights:
    """EMA of named weights, which is saved, evaluated and previewed instead of the weights.

    The decay after n updates is min(decay, (1 + n) / (10 + n)), so that the initial weights fade early.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], decay: float) -> None:
        """`decay`: with 0.99, the mean covers about the last 100 updates."""
        self._parameters, self._decay = parameters, decay
        self._updates = 0
        self.values = {name: p.detach().clone() for name, p in parameters.items()}

    def update(self) -> None:
        """Adds the current weights to the mean."""
        self._updates += 1
        decay = min(self._decay, (1 + self._updates) / (10 + self._updates))
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                self.values[name].lerp_(parameter, 1 - decay)

    def state(self) -> dict[str, Tensor]:
        """Returns the mean and its count of updates, as CPU copies."""
        mean = {_PREFIX + name: value.to("cpu", copy=True) for name, value in self.values.items()}
        return mean | {_COUNT: torch.tensor(self._updates)}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Loads `state()`; a state without EMA starts it from the current weights."""
        for name, parameter in self._parameters.items():
            self.values[name].copy_(state.get(_PREFIX + name, parameter.detach()))
        self._updates = int(state.get(_COUNT, torch.tensor(0)))
