"""Data parallel ranks: all-reduce of gradients, broadcast of decisions. One process is a group of one.

Decisions go over gloo, which runs everywhere, Windows included. Gradients go over NCCL if every rank has NCCL and a GPU
of its own, else as CPU copies over gloo.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import Any, cast

import torch

from ..abilities import abilities_of
from ..accelerator import backend_of, select
from ..errors import RESUME, PlacementError, RankLost, failure
from ..parallel import ClipRanks
from ..words import shortened

MEETING = "WAN_TRAINER_RANKS"
"""environment variable: rendezvous file of our own launcher's ranks; unset: torchrun's environment"""
_LEADER_TIMEOUT = timedelta(hours=12)
"""timeout of the other ranks while only the leader works: saves, evaluates, previews, waits for disk space"""
_STEP_TIMEOUT = timedelta(hours=2)
"""timeout of all ranks inside a step, and of the leader at any time"""
_NCCL = "WAN_TRAINER_NCCL"
"""environment variable: 0 disables NCCL"""
_POLL_S = 0.02
_GIVING_UP_S = 30.0
"""largest difference between the times at which ranks in one collective time out"""


class Group:
    """This process as one of the ranks."""

    def __init__(
        self,
        rank: int = 0,
        world: int = 1,
        in_step: Any = None,
        roll: Any = None,
        *,
        on_this_machine: tuple[int, int] | None = None,
    ) -> None:
        """`in_step`: torch's group of the same ranks with the timeout of a step; None: this process is the only rank.

        `roll`: torch's store, where each rank counts the collectives it entered; None if our launcher watches ranks.
        `on_this_machine`: local rank and local world size; None: all ranks are local.
        """
        self.rank, self.world = rank, world
        self._alone = world == 1 and in_step is None
        self.local_rank, self.local_world = on_this_machine or (rank, world)
        self.parts = 1
        """consecutive ranks that train one clip together, each a part of its tokens; set by the session"""
        self._in_step, self._roll, self._met = in_step, roll, 0
        self.waited = 0.0
        """seconds that this rank has spent in collectives, nearly all of it waiting for other ranks"""
        self._nccl_decided, self._over_nccl = False, cast(Any, None)
        self._groups: dict[str, tuple[Any, list[int]]] = {}

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, which saves, evaluates, previews and emits."""
        return self.rank == 0

    @property
    def batches(self) -> int:
        """Number of batches in one step of all ranks: every `parts` ranks train one."""
        return self.world // self.parts

    @property
    def batch(self) -> int:
        """Index of this rank's batch, below `batches`."""
        return self.rank // self.parts

    def average(self, values: Iterable[torch.Tensor]) -> None:
        """Replace each tensor (any shape) by its mean over all ranks, in place."""
        if self._alone:
            return
        tensors = list(values)
        flat = torch.cat([t.detach().float().reshape(-1) for t in tensors])
        nccl = self._nccl_between(flat.device)
        if nccl is None:
            flat = flat.cpu()
        with self._meeting():
            if nccl is None:
                torch.distributed.all_reduce(flat, group=self._in_step)
            else:  # a barrier over gloo first: a rank that hangs inside NCCL can be neither stopped nor named
                torch.distributed.barrier(group=self._in_step)
                torch.distributed.all_reduce(flat, group=nccl)
        flat /= self.world
        offset = 0
        for tensor in tensors:
            tensor.copy_(flat[offset : offset + tensor.numel()].view_as(tensor))
            offset += tensor.numel()

    def _nccl_between(self, device: torch.device) -> Any:
        """Returns torch's NCCL group for tensors of `device`, or None; the ranks decide it together, once."""
        if not self._nccl_decided:
            self._nccl_decided = True
            has = backend_of(device).nccl and torch.distributed.is_nccl_available() and os.environ.get(_NCCL) != "0"
            # NCCL needs a card per rank. uuids distinguish cards, which under CUDA_VISIBLE_DEVICES may all be cuda:0.
            card = abilities_of(device).uuid or device if has else ""
            cards = self.gather(f"{socket.gethostname()} {card}" if has else "")
            if all(cards) and len(set(cards)) == self.world:
                select(device)
                with self._meeting():
                    self._over_nccl = torch.distributed.new_group(backend="nccl", timeout=_STEP_TIMEOUT)
        return self._over_nccl if backend_of(device).nccl else None

    def shard_mesh(self, sharders: int, device: torch.device) -> Any:
        """Returns torch's DeviceMesh of the `sharders` consecutive ranks that hold one copy of the base together.

        Every rank calls it. Raises PlacementError for GPUs without NCCL: weights would go through the CPU.
        """
        from torch.distributed.device_mesh import DeviceMesh

        found, _ = self._group_of(sharders, device, "model.placement.shards", "weights")
        return DeviceMesh.from_group(found, device.type)

    def clip_ranks(self, device: torch.device) -> ClipRanks:
        """Returns the ranks that train one clip with this one. Every rank calls it; raises what `shard_mesh` does."""
        found, ranks = self._group_of(self.parts, device, "model.placement.context_parallel", "tokens")
        return ClipRanks(found, ranks, ranks.index(self.rank), self.naming_lost)

    def _group_of(self, count: int, device: torch.device, setting: str, what: str) -> tuple[Any, list[int]]:
        """Returns torch's group of the `count` consecutive ranks around this one, and the ranks; cached by `what`.

        Every rank calls it.
        """
        if what in self._groups:
            return self._groups[what]
        nccl = self._nccl_between(device)
        if device.type != "cpu" and nccl is None:
            raise PlacementError(
                f"{setting} needs NCCL (Linux) and a GPU for each process. Set it to 1, and each process holds all "
                f"{what}."
            )
        mine: tuple[Any, list[int]] = (None, [])
        for first in range(0, self.world, count):
            ranks = list(range(first, first + count))
            backend = "gloo" if nccl is None else "nccl"
            with self._meeting():
                found = torch.distributed.new_group(ranks, backend=backend, timeout=_STEP_TIMEOUT)
            mine = (found, ranks) if self.rank in ranks else mine
        self._groups[what] = mine
        return mine

    def gather(self, value: Any) -> list[Any]:
        """Returns the `value` of every rank, by rank, on every rank."""
        if self._alone:
            return [value]
        found: list[Any] = [None] * self.world
        with self._meeting():
            torch.distributed.all_gather_object(found, value, group=self._in_step)
        return found

    def share(self, value: Any) -> Any:
        """Returns the leader's `value` on every rank (broadcast, and a barrier)."""
        if self._alone:
            return value
        box = [value]
        with self._meeting():
            torch.distributed.broadcast_object_list(box, src=0)
        return box[0]

    @contextlib.contextmanager
    def _meeting(self) -> Iterator[None]:
        """Goes around a collective: counts it in the store; if it fails, names the missing ranks."""
        self._met += 1
        if self._roll is not None:
            with contextlib.suppress(RuntimeError):  # The store has ended, and then the collective itself raises too.
                self._roll.set(str(self.rank), str(self._met))
        began = time.monotonic()
        with self.naming_lost():
            yield
        self.waited += time.monotonic() - began

    def naming_lost(self) -> contextlib.AbstractContextManager[None]:
        """Inside, the RuntimeError of a collective becomes RankLost, which names the ranks that hang or have ended."""
        return _together(self._absent)

    def _absent(self) -> list[int]:
        """Returns the ranks that did not enter the collective, according to the store."""
        if self._roll is None:
            return []
        others = [rank for rank in range(self.world) if rank != self.rank]
        try:
            self._roll.set(f"gave up {self.rank}", "")
            came = {rank: int(self._roll.get(str(rank))) for rank in others if self._roll.check([str(rank)])}
            if late := [rank for rank in others if came.get(rank, 0) < self._met]:
                return late
            # All ranks entered. The rank that hangs inside is the only one that does not time out.
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
    """Inside, the RuntimeError of a collective becomes RankLost, which names the ranks that `absent` returns."""
    try:
        yield
    except RuntimeError as error:
        silent = re.search(r"\btimed? ?out", str(error), re.IGNORECASE)
        # After the death of one rank, other ranks that have not entered may be alive.
        missing = absent() if silent else []
        who = f"Rank {' and rank '.join(map(str, missing))}" if missing else "Another rank"
        what = f"{'have' if len(missing) > 1 else 'has'} not answered in time" if silent else "has ended"
        why = f"{who} of this run {what}, so this one ends too ({shortened(str(error), 200)})."
        raise RankLost(failure(why, closing=RESUME)) from error


def join_group() -> Group:
    """Returns the group of our launcher or torchrun, or a group of one."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        return Group()
    meeting = os.environ.get(MEETING)
    rank = int(os.environ["RANK"])
    here = int(os.environ.get("LOCAL_RANK", rank)), int(os.environ.get("LOCAL_WORLD_SIZE", world))
    patience = _STEP_TIMEOUT if rank == 0 else _LEADER_TIMEOUT
    with _together(list):
        if meeting:
            store, roll = torch.distributed.FileStore(meeting, world), None
        else:  # torchrun's environment has the address of the store
            store, *_ = next(torch.distributed.rendezvous("env://", timeout=patience))
            store = torch.distributed.PrefixStore(attempt_of(store, rank, world), store)
            roll = torch.distributed.PrefixStore("meetings", store)
        torch.distributed.init_process_group("gloo", timeout=patience, store=store, rank=rank, world_size=world)
        in_step = torch.distributed.new_group(backend="gloo", timeout=_STEP_TIMEOUT)
    return Group(rank, world, in_step, roll, on_this_machine=here)


def attempt_of(store: Any, rank: int, world: int) -> str:
    """Returns a name of this attempt of torchrun: the same on all ranks, a new one after a restart; a collective.

    The store outlives a restart, with the entries of ended ranks, and torchrun's agents may count restarts differently.
    """
    name, others = uuid.uuid4().hex, range(1, world)
    if rank:
        store.set(f"came {rank}", name)
        name = store.get(f"attempt of {name}").decode()
        store.set(f"{name} {rank}", "")
        return name
    while not all(store.check([f"{name} {other}"]) for other in others):
        for other in others:  # Until a restarted rank has written its name, the store holds the name of the ended rank.
            if store.check([f"came {other}"]):
                store.set(f"attempt of {store.get(f'came {other}').decode()}", name)
        time.sleep(_POLL_S)
    return name
