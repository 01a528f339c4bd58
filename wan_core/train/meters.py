"""Memory of each device of a run: now, peak, and the prediction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from ..accelerator import is_gpu, memory_of, reset_peak
from ..cache import CacheSet
from ..placement import StepShape, card_bytes

MemoryReading = dict[str, dict[str, int | None]]
"""device -> bytes `now`, `peak`, `reserved`, `predicted`, and `total` of the device; None = unknown"""


class DeviceMeters:
    """Reads this process's memory on each device, without synchronizing.

    Peaks are per phase. Training is one phase, however often a save, an evaluation or a preview interrupts it: their
    memory never counts as a step's.
    """

    def __init__(self, devices: Iterable[torch.device], predicted: Mapping[str, int] | None = None) -> None:
        """`predicted`: peak of a step by device name."""
        self._devices = _computing(devices)
        self._predicted = predicted or {}
        self._total = {str(device): card_bytes(device) for device in self._devices}
        self._highest: dict[str, dict[str, int | None]] = {}

    @property
    def devices(self) -> tuple[str, ...]:
        """Names of the devices that are read."""
        return tuple(str(device) for device in self._devices)

    def read(self) -> MemoryReading:
        """Returns the memory of the training steps so far, first device first.

        GPU: allocated and reserved by torch. CPU: resident memory of the process, torch and Python included (no
        prediction has those), with its peak since the process started, since the kernel keeps no peak per phase.
        """
        found: MemoryReading = {}
        for name, values in self._present().items():
            before = self._highest.get(name, {})
            highest = {
                key: max((one for one in (before.get(key), values[key]) if one is not None), default=None)
                for key in ("peak", "reserved")
            }
            self._highest[name] = highest
            plan = {"predicted": self._predicted.get(name), "total": self._total[name]}
            found[name] = {"now": values["now"], **highest, **plan}
        return found

    def end_phase(self) -> MemoryReading:
        """Returns memory and peak of the phase that ends here, and starts the next phase."""
        found = self._present()
        for device in self._devices:
            if is_gpu(device):
                reset_peak(device)
        return found

    def _present(self) -> MemoryReading:
        return {str(device): _present(device) for device in self._devices}


def added_up(readings: Iterable[MemoryReading]) -> MemoryReading:
    """Returns the sum of several processes' readings by device; a sum of peaks is an upper bound."""
    total: MemoryReading = {}
    for reading in readings:
        for device, values in reading.items():
            known = total.setdefault(device, dict.fromkeys(values))
            for key, value in values.items():
                if value is not None:
                    known[key] = value if key == "total" else (known[key] or 0) + value  # one device has one total
    return total


def largest_step(cache_set: CacheSet, batch_size: int) -> StepShape:
    """Returns the largest micro-batch of a job on these clips."""
    _, frames, height, width = max(
        (cache_set.latent_shape(item) for item in cache_set.items), key=lambda s: s[1] * s[2] * s[3]
    )
    return StepShape(batch_size=batch_size, latent_frames=frames, latent_height=height, latent_width=width)


def _computing(devices: Iterable[torch.device]) -> tuple[torch.device, ...]:
    """Returns the distinct devices, without the CPU next to accelerators."""
    # There the CPU only holds offloaded weights, and its reading would be of the complete process.
    found = tuple(dict.fromkeys(devices))
    return tuple(device for device in found if device.type != "cpu") or found


def _present(device: torch.device) -> dict[str, int | None]:
    """Returns bytes now and at the peak since the last reset."""
    if is_gpu(device):
        return memory_of(device)
    resident = _resident() if device.type == "cpu" else {}
    return {"now": resident.get("VmRSS"), "peak": resident.get("VmHWM"), "reserved": None}


def _resident() -> dict[str, int]:
    """Returns this process's resident bytes, now (VmRSS) and peak (VmHWM); empty on systems without /proc."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            lines = (line.split() for line in file if line.startswith(("VmRSS:", "VmHWM:")))
            return {name.rstrip(":"): int(kib) << 10 for name, kib, _unit in lines}
    except (OSError, ValueError):
        return {}
