"""Copies that happen as late as they may, and are written down: what a GPU may do at worst, on a CPU."""

from __future__ import annotations

import os
import signal
import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from wan_core.placement.copies import Copies

POISON = 0xFF
"""NaN in every float dtype"""


@dataclass(eq=False)
class Copy:
    """One copy on its way."""

    source: Tensor
    target: Tensor
    begun_at: int
    """blocks that had begun to compute"""
    waited_at: int = -1
    arrived: bool = False


class LateCopies:
    """Bytes arrive only when they are waited for, and until then their target is NaN."""

    def __init__(self, most_host_bytes: int | None = None) -> None:
        self._left, self._now = most_host_bytes, 0
        self._towards: weakref.WeakValueDictionary[int, Copy] = weakref.WeakValueDictionary()
        self.begun: list[Copy] = []
        self.host: list[Tensor] = []
        self.remarks: dict[str, str] = {}

    def host_memory(self, size: int) -> Tensor | None:
        if self._left is not None:
            if self._left < size:
                return None
            self._left -= size
        self.host.append(torch.full((size,), POISON, dtype=torch.uint8))
        return self.host[-1]

    def lock(self, memory: Tensor) -> Tensor | None:
        self.host.append(memory)
        return memory

    def start(self, source: Tensor, target: Tensor) -> Copy:
        assert source.shape == target.shape
        assert source.dtype == target.dtype
        assert source.is_contiguous()
        assert target.is_contiguous()
        assert not (self.at_home(source) and self.at_home(target)), "from host to host"
        if earlier := self._towards.get(target.data_ptr()):
            earlier.arrived = True  # copies of one direction run in their order, so this one would cover it
        target.view(-1).view(torch.uint8).fill_(POISON)
        copy = self._towards[target.data_ptr()] = Copy(source, target, self._now)
        self.begun.append(copy)
        return copy

    def wait(self, copy: Copy) -> None:
        if copy.waited_at < 0:
            copy.waited_at = self._now
        if not copy.arrived:
            copy.target.copy_(copy.source)
            copy.arrived = True

    def tick(self) -> None:
        """A block begins to compute."""
        self._now += 1

    def at_home(self, tensor: Tensor) -> bool:
        """Whether a tensor lies in the memory that this gave out."""
        address = tensor.data_ptr()
        return any(memory.data_ptr() <= address < memory.data_ptr() + memory.nbytes for memory in self.host)


def die_in_copy(last: int) -> None:
    """Ends this process in the middle of its copy number `last`, as a power cut would."""
    count = 0

    def start(_self: Copies, source: Tensor, target: Tensor) -> Any:
        nonlocal count
        count += 1
        if count == last:
            half = source.numel() // 2
            target.view(-1)[:half].copy_(source.view(-1)[:half])
            os.kill(os.getpid(), signal.SIGKILL)
        target.copy_(source)

    Copies.start = start
