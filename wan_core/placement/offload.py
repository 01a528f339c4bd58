"""Offload of a model: kept tensors of all blocks, and the frozen weights of some (block swap)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..model import block_of
from .copies import Copies, copies_of
from .kept import KeptTensors
from .measures import MemoryMeasures, swapped_blocks
from .plan import Placement
from .shared import Shared
from .streaming import Ring


@dataclass
class _Lane:
    """The state of one device. Autograd has a thread for each device, which uses only the lane of its device."""

    copier: Copies
    ring: Ring
    places: list[KeptTensors]
    """kept tensors of each pass that waits for its backward pass; empty if inputs are not offloaded"""
    now: int = 0
    """index in `places` of the current pass"""
    returns: bool = False
    """whether the current or next block will run again in a backward pass"""

    @property
    def kept(self) -> KeptTensors | None:
        return self.places[self.now] if self.places else None


class BlockOffload:
    """The `Offload` of one model, by `MemoryMeasures`, on each of its devices."""

    def __init__(
        self,
        placement: Placement,
        order: Sequence[str],
        measures: MemoryMeasures,
        *,
        copies: Callable[[torch.device], Copies] = copies_of,
        most_host_bytes: int | None = None,
        shared: Shared | None = None,
        before: BlockOffload | None = None,
    ) -> None:
        """`order`: the names of all blocks, as `running_order` gives them.

        `most_host_bytes`: limit of kept tensors for each device; further ones stay on the device. None: no limit.
        `shared`: host memory for weights, shared with other processes; None: memory of this process alone.
        `before`: the offload of the same model with weaker measures; its host memory and offloaded blocks are reused.
        """
        self._placement, self._order, self._copies, self._most_host_bytes = placement, order, copies, most_host_bytes
        self.measures, self._shared = measures, shared
        self._swapped = frozenset(swapped_blocks(order, measures.blocks_to_swap))
        self._lanes: dict[torch.device, _Lane] = {}
        for device in placement.devices:
            own = [name for name in order if name in self._swapped and placement.device_of(name) == device]
            if not (own or measures.offload_inputs):
                continue
            old = before._lanes.get(device) if before is not None else None
            copier = copies(device) if old is None else old.copier
            places = [] if old is None else old.places
            if not places and measures.offload_inputs:
                places = [KeptTensors(device, copier, most_host_bytes)]
            ring = Ring(device, copier, own, shared)
            if old is not None:
                ring.take_over(old.ring)
            self._lanes[device] = _Lane(copier, ring, places)

    @property
    def remarks(self) -> dict[str, str]:
        """Warnings on host memory, one for each topic."""
        return {topic: text for lane in self._lanes.values() for topic, text in lane.copier.remarks.items()}

    @property
    def holds_values(self) -> bool:
        """Whether a stage holds its dequantized weights for all chunks of tokens."""
        return self.measures.dequantize_once

    def offloads(self, name: str) -> bool:
        """Returns whether the weight or module `name` (original Wan name) belongs to an offloaded block."""
        found = block_of(name)
        return found is not None and f"{found.stream}.{found.number}" in self._swapped

    def offload_block(self, name: str, block: nn.Module) -> None:
        """Moves the frozen tensors of the block `name` to host memory, if the block is offloaded."""
        if name in self._swapped:
            self._lanes[self._placement.device_of(name)].ring.offload_block(name, block)

    def stronger(self, model: nn.Module) -> BlockOffload | None:
        """Returns the offload that replaces this one with the next stronger measures, between two passes of `model`.

        Offloaded tensors keep their host memory. None if these measures are the strongest.
        """
        measures = self.measures.stronger(len(self._order), split=len(self._placement.devices) > 1)
        if measures is None:
            return None
        self.release()
        offload = BlockOffload(
            self._placement,
            self._order,
            measures,
            copies=self._copies,
            most_host_bytes=self._most_host_bytes,
            shared=self._shared,
            before=self,
        )
        for name in self._order:
            offload.offload_block(name, model.get_submodule(name))
        return offload

    def keep_in(self, device: torch.device, place: int) -> None:
        """Select the stack for tensors kept by the next pass on `device`, if several passes wait for their backward
        pass. `place` counts from 0; a new stack allocates host memory on first use."""
        lane = self._lanes.get(device)
        if lane is None or not lane.places:
            return
        if place == 0:  # An interrupted step may have left tensors behind.
            for kept in lane.places:
                kept.sweep()
        while len(lane.places) <= place:
            lane.places.append(KeptTensors(device, lane.copier, self._most_host_bytes))
        lane.now = place

    @contextmanager
    def weights(self, block: str, *, again: bool) -> Iterator[None]:
        lane = self._lanes.get(self._placement.device_of(block))
        if lane is None:
            yield
            return
        with lane.ring.run(block, again=again, returns=lane.returns):
            if lane.kept is not None and not again:
                lane.kept.begin()
            yield
        lane.returns = False
        if lane.kept is not None and not again:
            lane.kept.end()

    def put(self, kept: Tensor) -> Callable[[], Tensor] | None:
        lane = self._lanes.get(kept.device)
        if lane is None:
            return None
        lane.returns = True
        return None if lane.kept is None else lane.kept.put(kept)

    def release(self, *, for_long: bool = False) -> None:
        """Free the device memory that is held between passes; the next pass allocates it again.

        `for_long`: also free the pinned memory of kept tensors; pinning it again takes seconds.
        """
        for lane in self._lanes.values():
            lane.ring.release()
            lane.now = 0
            for kept in lane.places:
                kept.sweep()
                if for_long:
                    kept.give_back()
