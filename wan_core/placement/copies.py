"""Copies between a device, host memory and other devices; the only file with streams, events and pinned memory.

The other files of this package decide when a copy begins and who waits for it, equally for every kind of device.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..accelerator import backend_of
from ..words import filled, logger
from .host import host_bytes

_log = logger(__name__)
_PORTABLE = 1
"""cudaHostRegisterPortable: pinned for every device of the process"""
_LEFT_TO_OTHERS = 2 << 30
"""bytes of free host memory that are never pinned"""
_locked_bytes = 0
"""bytes that this process has pinned"""


class Copies:
    """Copies between one device and host memory while the device computes; here synchronous, for devices without
    streams.

    A copy sees the results of all work queued on the device before it. Until the copy is complete, its source must not
    change, and neither source nor target may be freed. Copies of memory that is not pinned block the host.
    """

    def __init__(self) -> None:
        self.remarks: dict[str, str] = {}
        """warnings on host memory, one for each topic"""

    def host_memory(self, size: int) -> Tensor | None:
        """Returns `size` new bytes, (size,) uint8, pinned if the system permits; None if RAM is short."""
        return torch.empty(size, dtype=torch.uint8)

    def lock(self, memory: Tensor) -> Tensor:
        """Returns host memory (size,) uint8, which has values already, pinned if the system permits.

        Each process that maps it must pin it for itself.
        """
        return memory

    def start(self, source: Tensor, target: Tensor) -> Any:
        """Begins a copy between two contiguous tensors of one shape and dtype, one in host memory, one on the device.

        Returns the copy, to pass to `wait`.
        """
        target.copy_(source)

    def start_all(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> Any:
        """Begins one copy of all pairs (source, target), all in the same direction; see `start`."""
        for source, target in pairs:
            self.start(source, target)

    def wait(self, copy: Any, reader: torch.device | None = None) -> None:
        """Makes work that is queued from now on, on the device or on `reader`, wait for a copy."""


class CudaCopies(Copies):
    """Copies on two streams, one for each direction, since a GPU has a copy engine for each.

    All memory belongs to the compute stream, which waits for a copy before source or target are freed. The allocator
    can then reuse it at once; with `record_stream` it would wait until the GPU has caught up with the host.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device
        self._out, self._in = torch.cuda.Stream(device), torch.cuda.Stream(device)

    def host_memory(self, size: int) -> Tensor | None:
        # torch's own pinned memory is rounded up to powers of two: 512 MiB for a block of 333 MiB.
        return self._locked(torch.empty(size, dtype=torch.uint8)) if _leaves_enough(size) else None

    def lock(self, memory: Tensor) -> Tensor:
        return self._locked(memory) if _leaves_enough(0) else memory

    def _locked(self, memory: Tensor) -> Tensor:
        with torch.cuda.device(self._device):
            if int(_runtime().cudaHostRegister(memory.data_ptr(), memory.nbytes, _PORTABLE)) != 0:
                _forget_error(self._device)
                remark_once(self.remarks, "locking", _refused())
                return memory
        global _locked_bytes
        _locked_bytes += memory.nbytes
        # A new storage on the same bytes, whose end runs `_unlock`: views keep a storage alive, not a tensor object.
        handed_out = torch.from_numpy(memory.numpy())  # pyright: ignore[reportUnknownMemberType]
        # The callback refers to `memory`, so that it is not freed while it is pinned. The end of the process unpins all
        # memory.
        weakref.finalize(handed_out.untyped_storage(), _unlock, memory, self._device).atexit = False
        return handed_out

    def start(self, source: Tensor, target: Tensor) -> Any:
        return self.start_all([(source, target)])

    def start_all(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> Any:
        stream = self._in if pairs[0][1].is_cuda else self._out
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            for source, target in pairs:
                target.copy_(source, non_blocking=True)
            return stream.record_event()

    def wait(self, copy: Any, reader: torch.device | None = None) -> None:
        torch.cuda.current_stream(reader or self._device).wait_event(copy)


def _runtime() -> Any:
    return torch.cuda.cudart()


def _leaves_enough(size: int) -> bool:
    """Returns whether enough RAM stays free with `size` new bytes, since the system cannot swap out pinned memory."""
    free = host_bytes()
    return free is None or free - size >= _LEFT_TO_OTHERS


def _unlock(memory: Tensor, device: torch.device) -> None:
    torch.cuda.synchronize(device)  # The device may still have queued copies of this memory.
    _runtime().cudaHostUnregister(memory.data_ptr())
    global _locked_bytes
    _locked_bytes -= memory.nbytes


def _forget_error(device: torch.device) -> None:
    """Clears the error of a refused call, which CUDA would report again at the next operation."""
    with contextlib.suppress(RuntimeError):
        torch.zeros(1, device=device).add_(1)
        torch.cuda.synchronize(device)


def _refused() -> str:
    return filled(
        "The system page-locked {locked} GiB of host memory and refuses more (Windows locks half of the RAM, WSL2 "
        "less). Further offloading uses pageable memory: the results are the same, a step is slower. To need less, "
        "offload less (offload_activations, blocks_to_swap) or train smaller clips.",
        locked=f"{_locked_bytes / 2**30:.1f}",
    )


def remark_once(remarks: dict[str, str], topic: str, text: str) -> None:
    """Logs a warning and adds it to `remarks`, once for each topic."""
    if topic not in remarks:
        remarks[topic] = text
        _log.warning("%s", text)


def copies_of(device: torch.device) -> Copies:
    """Returns the `Copies` of `device`."""
    return CudaCopies(device) if backend_of(device).late_copies else Copies()


def memory_to_copy(copies: Copies, size: int) -> Tensor:
    """Returns `size` new bytes of host memory, (size,) uint8, even if RAM is short."""
    found = copies.host_memory(size)
    return torch.empty(size, dtype=torch.uint8) if found is None else found


class Peers:
    """Copies tensors of other devices to one device while both compute; here synchronous, for devices without
    streams."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def mark(self) -> Any:
        """Returns an event after all work queued on the device until now."""

    def fetch(self, source: Tensor, ready: Any) -> tuple[Tensor, Any]:
        """Begins to copy a contiguous tensor of another device, after the event `ready` of that device.

        Returns the copy and an event at its end. Until then the copy must not be read, and the source not be changed
        or freed.
        """
        return source.to(self._device, copy=True), None

    def wait(self, event: Any) -> None:
        """Makes work that is queued on the device from now on wait for an event of any device."""


class CudaPeers(Peers):
    """Copies on streams of their own, so that both directions of a link run at once, and neither waits for computing.

    Each source card has two streams, because torch synchronizes a copy with the current streams of both cards.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._streams: dict[torch.device, tuple[torch.cuda.Stream, torch.cuda.Stream]] = {}

    def mark(self) -> Any:
        return torch.cuda.current_stream(self._device).record_event()

    def fetch(self, source: Tensor, ready: Any) -> tuple[Tensor, Any]:
        if source.device not in self._streams:
            self._streams[source.device] = torch.cuda.Stream(source.device), torch.cuda.Stream(self._device)
        there, here = self._streams[source.device]
        found = torch.empty_like(source, device=self._device)
        there.wait_event(ready)
        here.wait_event(ready)
        here.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(there), torch.cuda.stream(here):
            found.copy_(source, non_blocking=True)
            return found, here.record_event()

    def wait(self, event: Any) -> None:
        torch.cuda.current_stream(self._device).wait_event(event)


def peers_of(device: torch.device) -> Peers:
    """Returns the `Peers` of `device`."""
    return CudaPeers(device) if device.type == "cuda" else Peers(device)
