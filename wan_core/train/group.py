"""Several processes training one LoRA: gradients averaged, decisions shared. One process is a group of one.

Over gloo and CPU copies only: adapters are small, and gloo works without NCCL, on Windows too.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any

import torch
from torch import nn

from ..errors import RankLost
from ..words import shortened

__all__ = ["MEETING", "Group", "join_group"]

MEETING = "WAN_TRAINER_RANKS"
"""environment variable: the file at which the ranks of our own launcher meet; without it they are torchrun's"""


_LEADER_TIMEOUT = timedelta(hours=12)
"""how long the others wait where only the leader works: it saves, evaluates, previews, or waits for room on the disk"""
_STEP_TIMEOUT = timedelta(hours=2)
"""how long ranks wait for each other inside a step, which takes them about the same time, and the leader for the others
at any time: they have nothing else to do"""


class Group:
    """This process among its ranks."""

    def __init__(self, rank: int = 0, world: int = 1, in_step: Any = None) -> None:
        self.rank, self.world = rank, world
        self._in_step = in_step
        """torch's group of the same ranks, with the patience of a step"""

    @property
    def leads(self) -> bool:
        """True on the one rank that saves, evaluates, previews and talks."""
        return self.rank == 0

    def average(self, values: Iterable[torch.Tensor]) -> None:
        """Replace each tensor (any shape) by its mean over all ranks, in place."""
        if self.world == 1:
            return
        tensors = list(values)
        flat = torch.cat([t.detach().float().reshape(-1).cpu() for t in tensors])
        with _together():
            torch.distributed.all_reduce(flat, group=self._in_step)
        flat /= self.world
        offset = 0
        for tensor in tensors:
            tensor.copy_(flat[offset : offset + tensor.numel()].view_as(tensor))
            offset += tensor.numel()

    def average_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        self.average([p.grad for p in parameters if p.grad is not None])

    def gather(self, value: Any) -> list[Any]:
        """Returns the `value` of every rank in order of their numbers, on every rank."""
        if self.world == 1:
            return [value]
        found: list[Any] = [None] * self.world
        with _together():
            torch.distributed.all_gather_object(found, value, group=self._in_step)
        return found

    def share(self, value: Any) -> Any:
        """Returns the leader's `value`, on every rank; also the border at which the ranks meet."""
        if self.world == 1:
            return value
        box = [value]
        with _together():
            torch.distributed.broadcast_object_list(box, src=0)
        return box[0]

    def leave(self) -> None:
        """End the group; safe to call once."""
        if self.world > 1:
            torch.distributed.destroy_process_group()


@contextlib.contextmanager
def _together() -> Iterator[None]:
    """Around what every rank does at once: it breaks where a rank is missing, or silent for too long."""
    try:
        yield
    except RuntimeError as error:
        silent = re.search(r"\btimed? ?out", str(error), re.IGNORECASE)
        what = "has not answered in all the time it had" if silent else "has ended"
        raise RankLost(
            f"Another rank of this run {what}, so this one ends too ({shortened(str(error), 200)}). Saved steps are "
            "kept; queue again to resume."
        ) from error


def join_group() -> Group:
    """Returns the group our launcher or torchrun made, or a group of one."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        return Group()
    meeting = os.environ.get(MEETING)
    place: dict[str, Any] = {}  # torchrun's environment says where
    if meeting:
        store = torch.distributed.FileStore(meeting, world)
        place = {"store": store, "rank": int(os.environ["RANK"]), "world_size": world}
    with _together():
        patience = _STEP_TIMEOUT if os.environ.get("RANK") == "0" else _LEADER_TIMEOUT
        torch.distributed.init_process_group("gloo", timeout=patience, **place)
        in_step = torch.distributed.new_group(backend="gloo", timeout=_STEP_TIMEOUT)
    return Group(torch.distributed.get_rank(), world, in_step)
