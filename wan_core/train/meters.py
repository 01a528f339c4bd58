"""The memory that each device of a run holds now and held at most, beside what was predicted for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from ..cache import CacheSet
from ..placement import StepShape, card_bytes

MemoryReading = dict[str, dict[str, int | None]]
"""device -> bytes `now`, `peak`, `reserved`, `predicted`, and `total`: what it has; None where nothing is known"""


class DeviceMeters:
    """Reads the memory of this process on each of its devices; waits for none of them.

    A peak is that of a phase. Training is one phase, however often a save, an evaluation or a preview interrupts it:
    what those took never counts as what a step takes.
    """

    def __init__(self, devices: Iterable[torch.device], predicted: Mapping[str, int] | None = None) -> None:
        """`predicted`: peak of a step by device name. The host counts only where nothing else computes."""
        self._devices = _computing(devices)
        self._predicted = predicted or {}
        self._total = {str(device): card_bytes(device) for device in self._devices}
        self._highest: dict[str, dict[str, int | None]] = {}

    @property
    def devices(self) -> tuple[str, ...]:
        """The names of the devices that are read."""
        return tuple(str(device) for device in self._devices)

    def read(self) -> MemoryReading:
        """Returns the memory of the training steps so far, first device first.

        Of CUDA devices what torch has allocated, and at most reserved; of the CPU what the process has resident, torch
        and Python included, which no prediction counts, and its highest ever: no phase can be told apart there.
        """
        found: MemoryReading = {}
        for name, values in self._present().items():
            before = self._highest.get(name, {})
            highest = {key: _larger(before.get(key), values[key]) for key in ("peak", "reserved")}
            self._highest[name] = highest
            plan = {"predicted": self._predicted.get(name), "total": self._total[name]}
            found[name] = {"now": values["now"], **highest, **plan}
        return found

    def end_phase(self) -> MemoryReading:
        """Returns what the phase that ends here holds and held at most; another one begins."""
        found = self._present()
        for device in self._devices:
            if device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(device)
        return found

    def _present(self) -> MemoryReading:
        return {str(device): _present(device) for device in self._devices}


def _larger(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else max(one, other)


def added_up(readings: Iterable[MemoryReading]) -> MemoryReading:
    """Returns the readings of several processes as one.

    What they hold on one device adds up, so its peak is at most the sum of theirs. What the device has does not.
    """
    total: MemoryReading = {}
    for reading in readings:
        for device, values in reading.items():
            known = total.setdefault(device, dict.fromkeys(values))
            for key, value in values.items():
                if value is not None:
                    known[key] = value if key == "total" else (known[key] or 0) + value
    return total


def largest_step(cache_set: CacheSet, batch_size: int) -> StepShape:
    """Returns the largest micro-batch that a job on these clips can meet."""
    _, frames, height, width = max(
        (cache_set.latent_shape(item) for item in cache_set.items), key=lambda s: s[1] * s[2] * s[3]
    )
    return StepShape(batch_size=batch_size, latent_frames=frames, latent_height=height, latent_width=width)


def _computing(devices: Iterable[torch.device]) -> tuple[torch.device, ...]:
    """Returns the distinct devices; not the host, where there are others whose weights rest in its memory."""
    found = tuple(dict.fromkeys(devices))
    return tuple(device for device in found if device.type != "cpu") or found


def _present(device: torch.device) -> dict[str, int | None]:
    """Returns the bytes now, and at most since the last reset."""
    if device.type == "cuda":
        return {
            "now": torch.cuda.memory_allocated(device),
            "peak": torch.cuda.max_memory_allocated(device),
            "reserved": torch.cuda.max_memory_reserved(device),
        }
    resident = _resident() if device.type == "cpu" else {}
    return {"now": resident.get("VmRSS"), "peak": resident.get("VmHWM"), "reserved": None}


def _resident() -> dict[str, int]:
    """Returns the bytes of host memory this process has now (VmRSS) and had at most (VmHWM).

    They are empty where no file says so.
    """
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            lines = (line.split() for line in file if line.startswith(("VmRSS:", "VmHWM:")))
            return {name.rstrip(":"): int(kib) << 10 for name, kib, _unit in lines}
    except (OSError, ValueError):
        return {}
