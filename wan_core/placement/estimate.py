"""The predicted memory of a job on each device and in the host, phase by phase."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .measures import MemoryMeasures


@dataclass(frozen=True, kw_only=True)
class DeviceMemory:
    """Bytes on one device."""

    weights: int
    """base weights that stay there, and the buffers that swapped ones are copied into"""
    adapters: int
    """LoRA weights, gradients and what the optimizer holds"""
    kept: int
    """what the forward pass keeps for the backward pass, and the batch"""
    phases: dict[str, int]
    """the peak of each phase: load, evaluate, step, preview (where there is one), save"""

    @property
    def step(self) -> int:
        return self.phases["step"]

    @property
    def peak(self) -> int:
        return max(self.phases.values())

    @property
    def working(self) -> int:
        """The largest temporary set of a step, on top of all that."""
        return self.step - self.weights - self.adapters - self.kept


@dataclass(frozen=True, kw_only=True)
class MemoryEstimate:
    """The memory a job is predicted to take under `measures`."""

    measures: MemoryMeasures
    devices: dict[str, DeviceMemory]
    pinned: int = 0
    """host memory that is locked, because copies run from and to it during the computation"""
    host: int = 0
    """host memory of weights, kept inputs and a save, the pinned part of it too; programs and libraries come on top

    Of what processes of one machine share, each counts an equal part, here and in `pinned`.
    """
    inputs: int = 0
    """of the pinned part, what gradient checkpointing keeps there of one micro-batch"""
    streamed: dict[str, int] = field(default_factory=dict)
    """bytes of frozen weights that are copied to each device in one pass through the model"""

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
