"""Free memory of each device and of the host that a job may take now."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from ..abilities import abilities_of
from ..accelerator import backend_of, free_bytes, is_gpu, planned_gpu, reserved_bytes
from ..errors import ConfigError
from .config import PlacementConfig
from .estimate import MemoryEstimate
from .host import host_bytes, host_total
from .plan import Placement, devices_of, resolve_placement

CARD_LIMIT = "WAN_TRAINER_CARD_GIB"
"""environment variable: plan as if every card had this number of GiB; the CPU then counts as a card too"""
HOST_LIMIT = "WAN_TRAINER_HOST_GIB"
"""environment variable: plan as if this number of GiB of CPU RAM were free"""
_RESERVE_GIB = 1.5 if sys.platform == "win32" else 1.0
"""GiB of each card reserved for the driver's context, workspaces of libraries and gaps between allocations"""
_GIB = 1 << 30


@dataclass(frozen=True, kw_only=True)
class FreeMemory:
    """The bytes that a job may take; a device that is not listed has no known limit."""

    devices: Mapping[str, int]
    host: int | None = None

    def lacks(self, estimate: MemoryEstimate) -> list[tuple[str, int, int]]:
        """Returns (place, needed, free) bytes of each place in which `estimate` does not fit, devices first."""
        needs = [(name, memory.peak, self.devices.get(name)) for name, memory in estimate.devices.items()]
        needs.append(("host memory", estimate.host, self.host))
        return [(name, needed, free) for name, needed, free in needs if free is not None and needed > free]


def free_memory_of_cards(gibibytes: Iterable[float], *, host: int | None = None) -> FreeMemory:
    """Returns the free memory of idle cards of these sizes in GiB: cuda:0, cuda:1 ..."""
    devices = {str(planned_gpu(index)): _less_reserve(gib) for index, gib in enumerate(gibibytes)}
    return FreeMemory(devices=devices, host=host)


def free_memory_here(devices: Iterable[torch.device], *, ask_driver: bool) -> FreeMemory:
    """Returns the free memory of these devices of this machine, minus a reserve.

    `ask_driver`: query every card, so that the memory of other programs counts. The query opens a CUDA context of some
    hundred MiB on the card; without it, a card that this process does not use counts as empty.
    """
    limit = card_limit()
    found: dict[str, int] = {}
    for device in devices:
        if is_gpu(device):
            found[str(device)] = _room_on_card(device, limit, ask_driver=ask_driver)
        elif limit is not None:
            found[str(device)] = _less_reserve(limit)
    of_host = _said_gibibytes(HOST_LIMIT)
    host = host_bytes() if of_host is None else int(of_host * _GIB)
    return FreeMemory(devices=found, host=host if found else None)


def processes_by_free_memory(
    config: PlacementConfig, num_blocks: int, *, ask_driver: bool
) -> list[tuple[Placement, FreeMemory]]:
    """Returns the placement and the free memory of each process of a job, the process with the least memory first.

    Processes share host memory in equal parts. `ask_driver`: see `free_memory_here`.
    """
    found: list[tuple[Placement, FreeMemory]] = []
    for rank in range(config.ranks):
        room = free_memory_here(devices_of(config, num_blocks, rank), ask_driver=ask_driver)
        host = None if room.host is None else room.host // config.ranks
        found.append((resolve_placement(config, num_blocks, rank), FreeMemory(devices=room.devices, host=host)))
    return sorted(found, key=lambda one: min(one[1].devices.values(), default=0))


def card_limit() -> float | None:
    """Returns CARD_LIMIT in GiB; None if it is unset. Raises ConfigError for a value that is no positive number."""
    return _said_gibibytes(CARD_LIMIT)


def _said_gibibytes(variable: str) -> float | None:
    said = os.environ.get(variable, "").strip()
    if not said:
        return None
    try:
        limit = float(said)
    except ValueError:
        limit = 0.0
    if not 0 < limit < 1e6:
        raise ConfigError(f'{variable} is "{said[:40]}". Set it to a number of GiB, such as 16, or unset it.')
    return limit


def total_bytes(device: torch.device) -> int:
    """Returns the total bytes of a device; for the CPU the host's RAM, or 2**62 without psutil."""
    if is_gpu(device):
        return abilities_of(device).memory
    return host_total() or 1 << 62


def card_bytes(device: torch.device) -> int | None:
    """Returns the bytes of a device, at most CARD_LIMIT; None if they are unknown."""
    limit, total = card_limit(), total_bytes(device)
    if limit is not None:
        total = min(total, int(limit * _GIB))
    return total if total < 1 << 60 else None


def _room_on_card(device: torch.device, limit: float | None, *, ask_driver: bool) -> int:
    total = abilities_of(device).memory
    taken = 0
    if ask_driver or reserved_bytes(device):  # a card that this process uses has a context already
        # Memory that this process holds can be reused, so it does not count.
        taken = total - free_bytes(device) - reserved_bytes(device)
    left = (total if limit is None else min(total, int(limit * _GIB))) - taken
    if backend_of(device).shares_host and (free := host_bytes()) is not None:
        left = min(left, free + reserved_bytes(device))
    return max(left - int(_RESERVE_GIB * _GIB), 0)


def _less_reserve(gibibytes: float) -> int:
    return max(int((gibibytes - _RESERVE_GIB) * _GIB), 0)
