"""Placement decides which block sits on which device, carries tensors between them, and predicts the memory."""

from __future__ import annotations

from .bridge import DeviceCarrier
from .memory import MemoryEstimate, estimate_memory
from .plan import MODES, Placement, PlacementConfig, resolve_placement

__all__ = [
    "MODES",
    "DeviceCarrier",
    "MemoryEstimate",
    "Placement",
    "PlacementConfig",
    "estimate_memory",
    "resolve_placement",
]
