"""Copies between a device, host memory and other devices: the one file that knows streams, events and locked memory.

Everything else of this room is the same on every device: which copy begins when, and who waits for it.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from ..accelerator import backend_of
from ..words import filled, logger
from .host import host_bytes

_log = logger(__name__)
_PORTABLE = 1
"""cudaHostRegisterPortable: page-locked for every device of the process"""
_LEFT_TO_OTHERS = 2 << 30
"""bytes of host memory that are never locked"""
_locked_bytes = 0
"""page-locked so far by this process"""


class Copies(Protocol):
    """Moves bytes between one device and host memory while the device computes.

    A copy reads the results of all that was queued on the device before it, and of nothing later. Until it is
    complete, its source must not change, and neither end may be freed. Copies of memory that is not page-locked block.
    """

    remarks: dict[str, str]
    """warnings on host memory, one for each topic"""

    def host_memory(self, size: int) -> Tensor | None:
        """Returns `size` new bytes, (size,) uint8, page-locked where the system locks them; None where RAM is short."""
        ...

    def lock(self, memory: Tensor) -> Tensor:
        """Returns `memory` (size,) uint8 of the host, page-locked where the system locks it.

        It was written already, and may be mapped by other processes too, each of which locks it for itself.
        """
        ...

    def start(self, source: Tensor, target: Tensor) -> Any:
        """Begins to copy between two contiguous tensors of one shape and dtype; one lies on the host, one does not."""
        ...

    def start_all(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> Any:
        """Begins to copy each source of (source, target) as `start` does; all in the direction of the first."""
        ...

    def wait(self, copy: Any, reader: torch.device | None = None) -> None:
        """Lets whatever the device, or another one, computes from now on wait for what `start` returned."""
        ...


class PlainCopies:
    """Copies at once: for devices without streams of their own, and the CPU, where tests run what GPUs run."""

    def __init__(self) -> None:
        self.remarks: dict[str, str] = {}

    def host_memory(self, size: int) -> Tensor | None:
        return torch.empty(size, dtype=torch.uint8)

    def lock(self, memory: Tensor) -> Tensor:
        return memory

    def start(self, source: Tensor, target: Tensor) -> Any:
        target.copy_(source)

    def start_all(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> Any:
        for source, target in pairs:
            self.start(source, target)

    def wait(self, copy: Any, reader: torch.device | None = None) -> None:
        pass


class CudaCopies:
    """Copies on two streams of their own, one for each direction: a GPU has an engine for each.

    All memory belongs to the stream that computes, which waits for a copy before either end is freed. So the allocator
    may hand it on at once, however far the host is ahead; `record_stream` would keep it until the GPU has caught up.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self.remarks = device, dict[str, str]()
        self._out, self._in = torch.cuda.Stream(device), torch.cuda.Stream(device)

    def host_memory(self, size: int) -> Tensor | None:
        # torch's own page-locked memory comes in powers of two: 512 MiB for a block of 333.
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
        # A storage of its own, on the same bytes: views of it hold the storage and not the tensor they were taken from.
        handed_out = torch.from_numpy(memory.numpy())  # pyright: ignore[reportUnknownMemberType]
        # The callback holds the memory, so it is never freed while it is still locked. The end of the process unlocks.
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


def _leaves_enough(size: int) -> bool:
    """Returns whether others have enough memory with `size` new bytes: the system swaps no locked memory out."""
    free = host_bytes()
    return free is None or free - size >= _LEFT_TO_OTHERS


def _runtime() -> Any:
    return torch.cuda.cudart()


def _unlock(memory: Tensor, device: torch.device) -> None:
    torch.cuda.synchronize(device)  # each copy is queued with a wait on the device, which may not have reached it yet
    _runtime().cudaHostUnregister(memory.data_ptr())
    global _locked_bytes
    _locked_bytes -= memory.nbytes


def _forget_error(device: torch.device) -> None:
    """Reads away the error of a refused call, which CUDA would raise at whatever runs next."""
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
    """Logs a warning and adds it to `remarks`; does nothing where the topic has one."""
    if topic not in remarks:
        remarks[topic] = text
        _log.warning("%s", text)


def copies_of(device: torch.device) -> Copies:
    """Returns what copies tensors between `device` and host memory."""
    return CudaCopies(device) if backend_of(device).late_copies else PlainCopies()


def memory_to_copy(copies: Copies, size: int) -> Tensor:
    """Returns `size` new bytes of host memory, (size,) uint8, also where RAM is short."""
    found = copies.host_memory(size)
    return torch.empty(size, dtype=torch.uint8) if found is None else found


class Peers(Protocol):
    """Brings tensors of other devices to one device while both compute."""

    def mark(self) -> Any:
        """Returns an event behind everything launched on the device before."""
        ...

    def fetch(self, source: Tensor, ready: Any) -> tuple[Tensor, Any]:
        """Begins to copy a contiguous tensor of another device, which has its values behind the event `ready`.

        Returns the copy, and the event behind which it has arrived: until then nobody may read it, nor change or free
        the source.
        """
        ...

    def wait(self, event: Any) -> None:
        """Lets everything launched on the device from now on wait for an event of any device."""
        ...


class PlainPeers:
    """Copies at once, for devices without streams."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def mark(self) -> Any:
        pass

    def fetch(self, source: Tensor, ready: Any) -> tuple[Tensor, Any]:
        return source.to(self._device, copy=True), None

    def wait(self, event: Any) -> None:
        pass


class CudaPeers:
    """Copies on two streams for each pair of cards and direction: torch orders a copy behind one on either card.

    Streams of their own, so that both directions of a link run at once, and neither waits for computing.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
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
    """Returns how tensors of other devices come to `device`."""
    return CudaPeers(device) if device.type == "cuda" else PlainPeers(device)
