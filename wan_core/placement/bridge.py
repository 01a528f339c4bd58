"""Moves tensors between the devices of a split model, before each block and before the head."""

from __future__ import annotations

import torch
from torch import Tensor

from ..model import Constants, sent
from .plan import Placement


class DeviceCarrier:
    """The `Carrier` of a model with blocks on several devices.

    Tokens move where the device changes; the constants of a pass are copied once to each device. Moves are
    differentiable, and happen outside the checkpointed region, so that recompute does not repeat them.
    """

    def __init__(self, placement: Placement) -> None:
        self.placement = placement
        self._source: Constants | None = None
        self._copies: dict[torch.device, Constants] = {}

    def to_block(self, index: int, tokens: Tensor, constants: Constants) -> tuple[Tensor, Constants]:
        device = self.placement.block_devices[index]
        if constants is not self._source:
            self._source, self._copies = constants, {}
        if device not in self._copies:
            self._copies[device] = constants.moved(lambda tensor: _move(tensor, device))
        return _move(tokens, device), self._copies[device]

    def to_head(self, tokens: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
        self._source, self._copies = None, {}
        return _move(tokens, self.placement.last), _move(time, self.placement.last)

    def to_start(self, predicted: Tensor) -> Tensor:
        return _move(predicted, self.placement.first)


def _move(tensor: Tensor, device: torch.device) -> Tensor:
    return tensor if tensor.device == device else sent(tensor, device)
