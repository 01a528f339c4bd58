"""Several processes training one LoRA: gradients averaged, decisions shared. One process is a group of one.

They meet and decide over gloo, which works everywhere, on Windows too. Gradients go over NCCL where every rank has it
and a GPU of its own, else as CPU copies over gloo.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import Any, cast

import torch
from torch import nn

from ..abilities import abilities_of
from ..errors import RESUME, RankLost, failure
from ..words import shortened

MEETING = "WAN_TRAINER_RANKS"
"""environment variable: the file at which the ranks of our own launcher meet; without it they are torchrun's"""


_LEADER_TIMEOUT = timedelta(hours=12)
"""how long the others wait where only the leader works: it saves, evaluates, previews, or waits for room on the disk"""
_STEP_TIMEOUT = timedelta(hours=2)
"""how long ranks wait for each other inside a step, which takes them about the same time, and the leader for the others
at any time: they have nothing else to do"""

_NCCL = "WAN_TRAINER_NCCL"
"""environment variable: 0 leaves NCCL out"""

_GIVING_UP_S = 30.0
"""how long ranks that came to one meeting may differ in giving it up"""


class Group:
    """This process among its ranks."""

    def __init__(
        self,
        rank: int = 0,
        world: int = 1,
        in_step: Any = None,
        roll: Any = None,
        *,
        on_this_machine: tuple[int, int] | None = None,
    ) -> None:
        """`on_this_machine`: number and count among the ranks of this machine; None: all are here."""
        self.rank, self.world = rank, world
        self.local_rank, self.local_world = on_this_machine or (rank, world)
        self._in_step = in_step
        """torch's group of the same ranks, with the patience of a step"""
        self._roll = roll
        """torch's store, in which each rank notes how many meetings it came to; None where a launcher watches them"""
        self._met = 0
        self._asked_for_nccl, self._over_nccl = False, cast(Any, None)

    @property
    def leads(self) -> bool:
        """True on the one rank that saves, evaluates, previews and talks."""
        return self.rank == 0

    def average(self, values: Iterable[torch.Tensor]) -> None:
        """Replace each tensor (any shape) by its mean over all ranks, in place."""
        if self.world == 1:
            return
        tensors = list(values)
        flat = torch.cat([t.detach().float().reshape(-1) for t in tensors])
        nccl = self._nccl_between(flat.device)
        if nccl is None:
            flat = flat.cpu()
        with self._meeting():
            if nccl is None:
                torch.distributed.all_reduce(flat, group=self._in_step)
            else:  # first it is seen that all came: who waits in NCCL can neither be told nor named
                torch.distributed.barrier(group=self._in_step)
                torch.distributed.all_reduce(flat, group=nccl)
        flat /= self.world
        offset = 0
        for tensor in tensors:
            tensor.copy_(flat[offset : offset + tensor.numel()].view_as(tensor))
            offset += tensor.numel()

    def _nccl_between(self, device: torch.device) -> Any:
        """Returns torch's group over NCCL for tensors of `device`, or None; the ranks decide it together, once."""
        if not self._asked_for_nccl:
            self._asked_for_nccl = True
            has = device.type == "cuda" and torch.distributed.is_nccl_available() and os.environ.get(_NCCL) != "0"
            card = abilities_of(device).uuid or device if has else ""
            cards = self.gather(f"{socket.gethostname()} {card}" if has else "")
            if all(cards) and len(set(cards)) == self.world:
                torch.cuda.set_device(device)
                with self._meeting():
                    self._over_nccl = torch.distributed.new_group(backend="nccl", timeout=_STEP_TIMEOUT)
        return self._over_nccl if device.type == "cuda" else None

    def average_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        self.average([p.grad for p in parameters if p.grad is not None])

    def gather(self, value: Any) -> list[Any]:
        """Returns the `value` of every rank in order of their numbers, on every rank."""
        if self.world == 1:
            return [value]
        found: list[Any] = [None] * self.world
        with self._meeting():
            torch.distributed.all_gather_object(found, value, group=self._in_step)
        return found

    def share(self, value: Any) -> Any:
        """Returns the leader's `value`, on every rank; also the border at which the ranks meet."""
        if self.world == 1:
            return value
        box = [value]
        with self._meeting():
            torch.distributed.broadcast_object_list(box, src=0)
        return box[0]

    @contextlib.contextmanager
    def _meeting(self) -> Iterator[None]:
        """Around what all ranks do at once, with a note that this one came."""
        self._met += 1
        if self._roll is not None:
            with contextlib.suppress(RuntimeError):  # the store has ended; the meeting will say more
                self._roll.set(str(self.rank), str(self._met))
        with _together(self._absent):
            yield

    def _absent(self) -> list[int]:
        """Returns the ranks that kept this one waiting, as far as the roll tells.

        These are the ones that did not come to the meeting. Where all came, one of them stopped in its midst: the one
        that, unlike the others, does not give up.
        """
        if self._roll is None:
            return []
        others = [rank for rank in range(self.world) if rank != self.rank]
        try:
            self._roll.set(f"gave up {self.rank}", "")
            came = {rank: int(self._roll.get(str(rank))) for rank in others if self._roll.check([str(rank)])}
            if late := [rank for rank in others if came.get(rank, 0) < self._met]:
                return late
            deadline = time.monotonic() + _GIVING_UP_S
            while waiting := [rank for rank in others if not self._roll.check([f"gave up {rank}"])]:
                if time.monotonic() > deadline:
                    return waiting if len(waiting) == 1 else []
                time.sleep(0.2)
        except RuntimeError:  # the store ended with the rank or machine that kept it
            pass
        return []

    def leave(self) -> None:
        """End the group; safe to call once."""
        if self.world > 1:
            torch.distributed.destroy_process_group()


@contextlib.contextmanager
def _together(absent: Callable[[], list[int]]) -> Iterator[None]:
    """Around what every rank does at once: it breaks where a rank is missing, or silent for too long.

    `absent` names the ranks that did not come. It is asked about silence alone: after a death those who are late may
    well be alive.
    """
    try:
        yield
    except RuntimeError as error:
        silent = re.search(r"\btimed? ?out", str(error), re.IGNORECASE)
        missing = absent() if silent else []
        who = f"Rank {' and rank '.join(map(str, missing))}" if missing else "Another rank"
        what = f"{'have' if len(missing) > 1 else 'has'} not answered in all the time it had" if silent else "has ended"
        why = f"{who} of this run {what}, so this one ends too ({shortened(str(error), 200)})."
        raise RankLost(failure(why, closing=RESUME)) from error


def join_group() -> Group:
    """Returns the group our launcher or torchrun made, or a group of one."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        return Group()
    meeting = os.environ.get(MEETING)
    rank = int(os.environ["RANK"])
    patience = _STEP_TIMEOUT if rank == 0 else _LEADER_TIMEOUT
    with _together(list):
        if meeting:
            store, roll = torch.distributed.FileStore(meeting, world), None
        else:  # torchrun's environment says where
            store, *_ = next(torch.distributed.rendezvous("env://", timeout=patience))
            roll = torch.distributed.PrefixStore("meetings", store)
        torch.distributed.init_process_group("gloo", timeout=patience, store=store, rank=rank, world_size=world)
        in_step = torch.distributed.new_group(backend="gloo", timeout=_STEP_TIMEOUT)
    here = int(os.environ.get("LOCAL_RANK", rank)), int(os.environ.get("LOCAL_WORLD_SIZE", world))
    return Group(rank, world, in_step, roll, on_this_machine=here)
