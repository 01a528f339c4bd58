"""Placement decides which block sits on which device, carries tensors between them, and predicts the memory."""

from __future__ import annotations

from .bridge import DeviceCarrier
from .measures import MemoryMeasures
from .memory import JobShape, MemoryEstimate, estimate_memory
from .plan import MODES, Placement, PlacementConfig, resolve_placement
from .trace import StepShape

__all__ = [
    "MODES",
    "DeviceCarrier",
    "JobShape",
    "MemoryEstimate",
    "MemoryMeasures",
    "Placement",
    "PlacementConfig",
    "StepShape",
    "estimate_memory",
    "resolve_placement",
]
