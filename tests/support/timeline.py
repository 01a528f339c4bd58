"""What a device did, in the order in which it was told, and how long that takes where copies run beside."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple


class Event(NamedTuple):
    """One thing a device was told."""

    kind: str
    """compute, start (of a copy), wait (for one)"""
    what: str = ""
    """of a copy: out (to the host) or in"""
    number: int = -1
    """of the copy"""
    amount: float = 0.0
    """FLOPs of compute, bytes of a copy"""


@dataclass(frozen=True)
class Timeline:
    """Seconds of a log."""

    seconds: float
    compute: float
    waited: float
    """seconds in which the device had nothing to do but wait for copies"""
    waits: int
    """copies that were waited for so"""
    out_bytes: float
    in_bytes: float


def timeline(events: Iterable[Event], *, flops: float, bandwidth: float) -> Timeline:
    """Returns the times of a device with one compute queue and one copy engine for each direction.

    `flops` and `bandwidth` (bytes, each way) are per second. The host is never late. A copy begins when all that was
    told before it is computed and its engine is free; a wait holds the compute queue until its copy has arrived.
    """
    now = compute = waited = 0.0
    waits = 0
    free, moved = {"out": 0.0, "in": 0.0}, {"out": 0.0, "in": 0.0}
    arrives: dict[int, float] = {}
    for event in events:
        if event.kind == "compute":
            now += event.amount / flops
            compute += event.amount / flops
        elif event.kind == "start":
            free[event.what] = arrives[event.number] = max(now, free[event.what]) + event.amount / bandwidth
            moved[event.what] += event.amount
        elif (late := arrives.get(event.number, 0.0) - now) > 0:  # one from before the log has long arrived
            now, waited, waits = now + late, waited + late, waits + 1
    return Timeline(now, compute, waited, waits, moved["out"], moved["in"])
