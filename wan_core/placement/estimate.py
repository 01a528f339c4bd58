"""The predicted memory of a job on each device and in the host, phase by phase."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .measures import MemoryMeasures


@dataclass(frozen=True, kw_only=True)
class DeviceMemory:
    """Bytes on one device."""

    weights: int
    """base weights on the device, and the buffers for swapped blocks"""
    adapters: int
    """adapter weights, gradients and optimizer state"""
    kept: int
    """the batch, and the activations kept for the backward pass"""
    phases: dict[str, int]
    """peak of each phase: load, evaluate, step, preview (with previews), save"""

    @property
    def step(self) -> int:
        return self.phases["step"]

    @property
    def peak(self) -> int:
        return max(self.phases.values())

    @property
    def working(self) -> int:
        """The peak of temporary tensors in a step, besides weights, adapters and kept tensors."""
        return self.step - self.weights - self.adapters - self.kept


@dataclass(frozen=True, kw_only=True)
class MemoryEstimate:
    """The memory a job is predicted to take under `measures`."""

    measures: MemoryMeasures
    devices: dict[str, DeviceMemory]
    pinned: int = 0
    """pinned host memory, for copies during the computation"""
    host: int = 0
    """host memory of weights, kept inputs and a save, including `pinned`, without programs and libraries

    Memory that processes of one machine share counts in equal parts for each, here and in `pinned`.
    """
    inputs: int = 0
    """the part of `pinned` for activations of one micro-batch"""
    streamed: dict[str, int] = field(default_factory=dict)
    """bytes of frozen weights copied to each device in one pass through the model"""

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Returns the devices as JSON data."""
        return {
            name: {
                "weights_bytes": m.weights,
                "adapters_bytes": m.adapters,
                "kept_bytes": m.kept,
                "working_bytes": m.working,
                "peak_bytes": m.peak,
                "phases": {f"{phase}_bytes": value for phase, value in m.phases.items()},
            }
            for name, m in self.devices.items()
        }
