"""Shards the frozen weights of blocks over ranks with torch's FSDP2: each rank holds a part of each block.

A block is gathered for the time that it runs, in both passes, and the next block is prefetched. Adapters and modules
outside of the blocks are complete on every rank, so one rank can write a saved step.

FSDP's hooks are not used, because they expect one call of a module and one backward pass, while a block is recomputed
stage by stage. The model calls `weights` itself (`model/offload.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import RESUME, OutOfMemory, failure
from ..placement import BlockOffload, MemoryMeasures
from ..placement.model_offload import device_memory_ran_out
from ..words import filled, first_line


@dataclass(frozen=True)
class Sharding:
    """The ranks that hold one copy of the base together."""

    mesh: Any
    """torch's DeviceMesh of these ranks, one-dimensional"""
    share: Callable[[Any], Any]
    """returns the leader's value on every rank of the run (`Group.share`)"""
    leads: bool
    """whether this rank evaluates and previews"""
    named: Callable[[], AbstractContextManager[None]] = nullcontext
    """inside, the error of a collective names the rank that is lost (`Group.naming_lost`)"""


class _Unit(nn.Module):
    """Wraps one block for FSDP. It is never called, so that FSDP's hooks never run."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block


class ShardedBlocks:
    """The `Offload` of a model with sharded blocks; `inner` offloads the kept tensors.

    In a step, all ranks run the same blocks in the same order. While the leader runs blocks alone (evaluation,
    previews), the others `serve`: they gather each block that it names.
    """

    def __init__(self, inner: BlockOffload, order: Sequence[str], sharding: Sharding) -> None:
        """`order`: the names of all blocks, as `running_order` gives them. `inner` must swap no block."""
        self._inner, self._order, self._sharding = inner, list(order), sharding
        self._units: dict[str, Any] = {}
        self._coming: dict[str, Any] = {}
        """blocks that are being prefetched"""
        self._together = False

    @property
    def holds_values(self) -> bool:
        return self._inner.holds_values

    @property
    def remarks(self) -> dict[str, str]:
        return self._inner.remarks

    @property
    def measures(self) -> MemoryMeasures:
        return self._inner.measures

    def offloads(self, name: str) -> bool:
        """Returns False: no weight is offloaded to host memory."""
        return False

    def offload_block(self, name: str, block: nn.Module) -> None:
        """Shard the frozen weights of the complete block `name`: keep this rank's part, and free the others."""
        from torch.distributed.fsdp import fully_shard  # its import takes seconds

        if name in self._order:
            unit = fully_shard(_Unit(block), mesh=self._sharding.mesh, reshard_after_forward=False)
            self._units[name] = unit

    @contextmanager
    def weights(self, block: str, *, again: bool) -> Iterator[None]:
        if not self._together:
            self._sharding.share(block)
        self._gather(block)
        if self._together:
            number = self._order.index(block) + (-1 if again else 1)
            if 0 <= number < len(self._order):
                self._start(self._order[number])
        try:
            yield
        finally:
            self._units[block].reshard()

    def put(self, kept: Tensor) -> Callable[[], Tensor] | None:
        return self._inner.put(kept)

    def release(self, *, for_long: bool = False) -> None:
        """Free the device memory that is held between passes."""
        self._inner.release(for_long=for_long)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Inside, all ranks run the same blocks. Every rank calls it, and waits for the leader."""
        self.serve()
        self._together = True
        try:
            yield
        finally:
            self._together = False

    def gather_all(self) -> None:
        """Gather each block once, while other ranks run a pass without gradients."""
        for block in self._order:
            with self.weights(block, again=False):
                pass

    @contextmanager
    def complete(self, module: str) -> Iterator[None]:
        """Inside, the weights of the block of `module` are complete. Every rank calls it, before the first step."""
        block = ".".join(module.split(".")[:2])
        self._gather(block)
        try:
            yield
        finally:
            self._units[block].reshard()

    def serve(self) -> None:
        """Gather the blocks that the leader runs alone, until the leader calls this too. Every rank calls it."""
        if self._sharding.leads:
            self._sharding.share("")
            return
        while block := self._sharding.share(None):
            self._gather(block)
            self._units[block].reshard()

    def _start(self, block: str) -> None:
        if block not in self._coming:
            with self._gathering():
                self._coming[block] = self._units[block].unshard(async_op=True)

    def _gather(self, block: str) -> None:
        self._start(block)
        with self._gathering():
            self._coming.pop(block).wait()

    @contextmanager
    def _gathering(self) -> Iterator[None]:
        """Inside, errors name a lost rank, and a full device ends the run.

        A gather is not repeated, because the other ranks have continued: they would send parts of the next block.
        """
        # Weights first gathered in an evaluation under inference mode could not be used in training.
        with self._sharding.named(), torch.inference_mode(False):
            try:
                yield
            except RuntimeError as error:
                if not device_memory_ran_out(error):
                    raise
                what = filled(
                    "The GPU ran out of memory ({error}) while it gathered a sharded block, which one rank cannot "
                    "retry alone. Render smaller clips, evaluate fewer, or raise model.placement.shards.",
                    error=first_line(error),
                )
                raise OutOfMemory(failure(what, closing=RESUME)) from error
