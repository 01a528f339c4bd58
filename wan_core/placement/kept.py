"""Offloads the tensors that blocks keep for the backward pass to host memory, and prefetches them one block ahead.

These are the input of each block, and the activations that a checkpoint policy offloads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..model import scope
from ..words import filled
from .copies import Copies, remark_once

CHUNK_BYTES = 1 << 28
"""bytes of host memory allocated at once; pinning takes longer than filling"""
_ALIGNED = 256


@dataclass(eq=False)
class _Kept:
    block: int
    """number of blocks that ran on its device before its own"""
    start: int
    end: int
    """range of its bytes on the tape"""
    size: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    here: Tensor | None
    """the tensor while it is on the device"""
    copies: list[Any]
    """copies of the last transfer, to or from the host"""
    forgotten: bool = False
    """whether the graph that needs it was freed"""


class _Taker:
    """Loads one kept tensor; the function that `KeptTensors.put` returns."""

    def __init__(self, all_kept: KeptTensors, kept: _Kept) -> None:
        self._all, self._kept = all_kept, kept

    def __call__(self) -> Tensor:
        return self._all.take(self._kept)

    def __del__(self) -> None:
        # The garbage collector may run this at any point, so only a flag is set here; `sweep` frees the memory.
        self._kept.forgotten = True


class KeptTensors:
    """The kept tensors of one device: a stack, read in the reverse order of offloading."""

    def __init__(self, device: torch.device, copies: Copies, most_bytes: int | None = None) -> None:
        """`most_bytes`: limit of host memory; tensors beyond it stay on the device. None: no limit."""
        self._device, self._copies = device, copies
        self._tape = _Tape(copies, most_bytes)
        self._stack: list[_Kept] = []
        self._block = 0

    def __del__(self) -> None:
        for kept in self._stack:  # These were left by an interrupted pass.
            self._wait(kept)

    def put(self, tensor: Tensor) -> Callable[[], Tensor] | None:
        """Begins to copy a tensor of any shape to the host; returns a function that loads it, None if it must stay.

        The tensor stays on the device until `begin` of the next block, while its copy runs. The tensors of the last
        block of a pass therefore never leave the device.
        """
        self.sweep()
        start = self._stack[-1].end if self._stack else 0
        end = start + -(-tensor.nbytes // _ALIGNED) * _ALIGNED
        if not (_dense(tensor) and self._tape.reaches(end)):
            return None
        kept = _Kept(self._block, start, end, tensor.shape, tensor.stride(), tensor.dtype, tensor.detach(), [])
        kept.copies = self._copy(kept, out=True)
        self._stack.append(kept)
        return _Taker(self, kept)

    def begin(self) -> None:
        """Free the device tensors of earlier blocks. Called when a block begins its forward pass."""
        for kept in reversed(self._stack):
            if kept.here is None:
                break
            if kept.block < self._block:
                self._wait(kept)
                kept.here = None

    def end(self) -> None:
        """Called when the forward pass of a block ends."""
        self._block += 1

    def take(self, kept: _Kept) -> Tensor:
        """Returns the tensor of one `put` on the device. After the last tensor of a block, the tensors of the block
        before it are prefetched."""
        place = self._stack.index(kept)
        del self._stack[place]
        self._fetch(kept)
        self._wait(kept)
        here, kept.here = kept.here, None
        assert here is not None
        before = self._stack[place - 1].block if place else kept.block
        if before != kept.block:
            for other in reversed(self._stack[:place]):
                if other.block != before:
                    break
                self._fetch(other)
        return here

    def _fetch(self, kept: _Kept) -> None:
        if kept.here is None:
            with torch.inference_mode(False):
                kept.here = torch.empty_strided(kept.size, kept.stride, dtype=kept.dtype, device=self._device)
            kept.copies = self._copy(kept, out=False)

    def _copy(self, kept: _Kept, *, out: bool) -> list[Any]:
        assert kept.here is not None
        copies, place, size = [], 0, kept.here.nbytes
        values = kept.here.as_strided((kept.here.numel(),), (1,)).view(torch.uint8)
        with scope("offload activation" if out else "load activation"):
            for piece in self._tape.pieces(kept.start, kept.start + size):
                part = values[place : place + piece.numel()]
                copies.append(self._copies.start(part, piece) if out else self._copies.start(piece, part))
                place += piece.numel()
        return copies

    def _wait(self, kept: _Kept) -> None:
        for copy in kept.copies:
            self._copies.wait(copy)

    def give_back(self) -> None:
        """Free the host memory if nothing is kept; the next pass allocates it again."""
        if not self._stack:
            self._tape.give_back()

    def sweep(self) -> None:
        """Drop tensors whose graph was freed without a backward pass, for example after an error."""
        for kept in [kept for kept in self._stack if kept.forgotten]:
            self._wait(kept)
            self._stack.remove(kept)


def _dense(tensor: Tensor) -> bool:
    """Returns whether a tensor is dense and without overlap, for any order of its dimensions."""
    return tensor.nbytes > 0 and torch.empty_like(tensor, device="meta").stride() == tensor.stride()


class _Tape:
    """Host memory addressed as one range of bytes, which every step reuses from its beginning.

    It grows by chunks of CHUNK_BYTES, and a tensor may extend over two chunks, so there are no gaps.
    """

    def __init__(self, copies: Copies, most_bytes: int | None) -> None:
        self._copies, self._most = copies, most_bytes
        self._chunks: list[Tensor] = []

    def reaches(self, end: int) -> bool:
        """Allocate memory for the first `end` bytes; returns False if host memory is short."""
        while len(self._chunks) * CHUNK_BYTES < end:
            if self._most is not None and (len(self._chunks) + 1) * CHUNK_BYTES > self._most:
                return False
            with torch.inference_mode(False):
                chunk = self._copies.host_memory(CHUNK_BYTES)
            if chunk is None:
                self._most = len(self._chunks) * CHUNK_BYTES
                said = filled(
                    "RAM is nearly full: of the activations that gradient checkpointing keeps, {gib} GiB are offloaded "
                    "and the others stay in GPU memory. Close other programs, or train smaller clips.",
                    gib=f"{self._most / 2**30:.1f}",
                )
                remark_once(self._copies.remarks, "kept", said)
                return False
            self._chunks.append(chunk)
        return True

    def give_back(self) -> None:
        self._chunks.clear()

    def pieces(self, start: int, end: int) -> list[Tensor]:
        """Returns the bytes from `start` to `end`, as consecutive tensors (n,) uint8."""
        found = []
        while start < end:
            number, offset = divmod(start, CHUNK_BYTES)
            stop = min(CHUNK_BYTES, offset + end - start)
            found.append(self._chunks[number][offset:stop])
            start += stop - offset
        return found
