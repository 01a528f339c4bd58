"""Several processes training one LoRA: gradients averaged, decisions shared. One process is a group of one.

Over gloo and CPU copies only: adapters are small, and gloo works without NCCL, on Windows too.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import torch
from torch import nn

__all__ = ["Group", "join_group"]


class Group:
    """This process among its ranks."""

    def __init__(self, rank: int = 0, world: int = 1) -> None:
        self.rank, self.world = rank, world

    @property
    def leads(self) -> bool:
        """True on the one rank that saves, evaluates, previews and talks."""
        return self.rank == 0

    def average(self, values: Iterable[torch.Tensor]) -> None:
        """Replace each tensor by its mean over all ranks, in place."""
        if self.world == 1:
            return
        tensors = list(values)
        flat = torch.cat([t.detach().float().reshape(-1).cpu() for t in tensors])
        torch.distributed.all_reduce(flat)
        flat /= self.world
        offset = 0
        for tensor in tensors:
            tensor.copy_(flat[offset : offset + tensor.numel()].view_as(tensor))
            offset += tensor.numel()

    def average_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        self.average([p.grad for p in parameters if p.grad is not None])

    def gather(self, value: Any) -> list[Any]:
        """The `value` of every rank in order of their numbers, on every rank."""
        if self.world == 1:
            return [value]
        found: list[Any] = [None] * self.world
        torch.distributed.all_gather_object(found, value)
        return found

    def share(self, value: Any) -> Any:
        """The leader's `value`, on every rank; also the border at which the ranks meet."""
        if self.world == 1:
            return value
        box = [value]
        torch.distributed.broadcast_object_list(box, src=0)
        return box[0]

    def leave(self) -> None:
        """End the group; safe to call once."""
        if self.world > 1:
            torch.distributed.destroy_process_group()


def join_group() -> Group:
    """The group torchrun made, or a group of one."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        return Group()
    # A preview or a save on the leader may take long; the other ranks wait for it at the next border.
    torch.distributed.init_process_group("gloo", timeout=timedelta(hours=12))
    return Group(torch.distributed.get_rank(), world)
