"""Passes tensors from one stage of a split model to the next, and gradients in the other direction.

Each stage has its own autograd graph: its inputs are leaves, and its outputs end in a scalar whose backward pass starts
from the received gradients. The host never waits; copies run on streams of their own.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..accelerator import backend_of

_UNDER_WAY = 2
"""number of most recent sends of a card whose tensors stay alive, because their copies may still run"""


class Bridge:
    """Copies between the cards of one process.

    Each card has a stream for its sends. On the compute stream, torch would synchronize both cards at every copy.
    """

    def __init__(self, devices: Iterable[torch.device]) -> None:
        cards = [device for device in devices if backend_of(device).late_copies]
        self._streams = {card: torch.cuda.Stream(card) for card in cards}
        self._leaving: dict[torch.device, deque[tuple[Sequence[Tensor], Any]]] = {card: deque() for card in cards}
        self._lock = threading.Lock()

    def mark(self, device: torch.device) -> Any:
        """Returns an event after all work queued on this device, for `fetch`."""
        return torch.cuda.current_stream(device).record_event() if device in self._streams else None

    def fetch(self, tensors: Sequence[Tensor], device: torch.device, made: Any) -> list[Tensor]:
        """Returns tensors of one device (any shapes, without gradient) on `device`. `made`: the mark after them."""
        home = tensors[0].device if tensors else device
        if home == device or home not in self._streams:
            return [tensor.to(device) for tensor in tensors]
        stream = self._streams[home]
        with torch.cuda.stream(stream):
            stream.wait_event(made)
            found = [torch.empty_like(tensor, device=device) for tensor in tensors]
            for source, target in zip(tensors, found, strict=True):
                target.copy_(source, non_blocking=True)
            copied = stream.record_event()
        with self._lock:
            self._leaving[home].append((tensors, copied))
        return found

    def free(self, device: torch.device, *, under_way: int = _UNDER_WAY) -> None:
        """Free the tensors sent from `device`, except for the last `under_way` sends."""
        while True:
            with self._lock:
                if len(self._leaving.get(device, ())) <= under_way:
                    return
                tensors, copied = self._leaving[device].popleft()
            torch.cuda.current_stream(device).wait_event(copied)
            del tensors


class Handover:
    """The tensors of one micro-batch between two stages."""

    def __init__(self, tensors: Sequence[Tensor], bridge: Bridge) -> None:
        """`tensors`: the inputs of the next stage, any shapes, with their graph."""
        self._bridge, self._device = bridge, tensors[0].device
        self._sent = {id(tensor): tensor for tensor in tensors}
        self._made = bridge.mark(self._device)
        self._box: list[Tensor | None] = []
        ends = {name: tensor for name, tensor in self._sent.items() if tensor.requires_grad}
        self._end: Tensor | None = _Handed.apply(self._box, *ends.values()) if ends else None
        self._leaves: dict[int, Tensor] = dict.fromkeys(ends, tensors[0])
        self._came_back: Any = None

    def receive(self, device: torch.device) -> dict[int, Tensor]:
        """Returns id of a sent tensor -> leaf on `device`, and releases the sent tensors."""
        with torch.no_grad():
            found = self._bridge.fetch([one.detach() for one in self._sent.values()], device, self._made)
        received = dict(zip(self._sent, found, strict=True))
        self._leaves = {name: received[name].requires_grad_() for name in self._leaves}
        self._sent.clear()
        return received

    def returned(self) -> None:
        """Called when the next stage has run its backward pass."""
        leaves = [*self._leaves.values()]
        self._came_back = self._bridge.mark(leaves[0].device) if leaves else None

    def backward(self) -> None:
        """Runs the backward pass of the stage, from the gradients of the next stage.

        Gradients are summed in the same order as in a model that is not split.
        """
        if self._end is None:
            return
        end, self._end, leaves = self._end, None, [*self._leaves.values()]
        self._leaves.clear()
        given = [leaf.grad for leaf in leaves if leaf.grad is not None]
        came = iter(self._bridge.fetch(given, self._device, self._came_back))
        self._box += [None if leaf.grad is None else next(came) for leaf in leaves]
        del leaves, given, came
        if any(gradient is not None for gradient in self._box):
            end.backward()


class _Handed(torch.autograd.Function):
    """A scalar on the stage's device whose backward pass returns the gradients in `box`."""

    @staticmethod
    def forward(ctx: Any, box: list[Tensor | None], *values: Tensor) -> Tensor:
        ctx.box = box
        return values[0].new_zeros(())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *_ones: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        found = tuple(ctx.box)
        ctx.box.clear()
        return None, *found
