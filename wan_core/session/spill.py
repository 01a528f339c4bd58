"""Detects memory spill on Windows: the driver moves device memory that does not fit to host memory, and steps crawl.

No error says so. The signs: the process holds more than the card has, or the card is full and the steps' FLOP rate is
several times below that of the first steps.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterable, Mapping

import torch

from ..accelerator import is_gpu
from ..events import StepDone
from ..placement import total_bytes
from ..words import filled

_FIRST, _LAST = 5, 3
"""number of first and of last steps whose median rates are compared"""
_SLOWER = 4.0
_FULL = 0.9
"""of the card; driver and desktop hold the other tenth"""
_GIB = 1 << 30


class SpillWatch:
    """Detects the memory spill of one run, and warns once."""

    def __init__(self, totals: Mapping[str, int]) -> None:
        """`totals`: bytes of each card by device name."""
        self._totals = totals
        self._speeds: list[float] = []
        self._said = False

    @classmethod
    def on(cls, devices: Iterable[str]) -> SpillWatch | None:
        """Returns a watch on these devices; None on systems without spill."""
        cards = {name: total_bytes(torch.device(name)) for name in devices if is_gpu(name)}
        return cls(cards) if cards and sys.platform == "win32" else None

    def remark(self, step: StepDone) -> str:
        """Returns the remark after `step`; "" without spill, and after the first remark."""
        slower = 1.0
        if step.tflops:  # The FLOP rate, unlike the seconds of a step, does not depend on the size of the clips.
            self._speeds = [*self._speeds[:_FIRST], *self._speeds[_FIRST:][-_LAST:], step.tflops]
        if len(self._speeds) >= _FIRST + _LAST:
            slower = statistics.median(self._speeds[:_FIRST]) / statistics.median(self._speeds[-_LAST:])
        for name, total in self._totals.items():
            values = step.memory.get(name, {})
            held = max(values.get("reserved") or 0, values.get("peak") or 0)
            if self._said or held <= (_FULL * total if slower >= _SLOWER else total):
                continue
            self._said = True
            return filled(
                "{device} is full ({held} of {total} GiB), so Windows moves memory of this run to the computer's RAM, "
                "and steps take several times longer. Stop it, set memory to auto in Wan Train Settings, close other "
                "programs that use the GPU, and press Run again: it resumes after its last saved step.",
                device=name,
                held=f"{held / _GIB:.1f}",
                total=f"{total / _GIB:.1f}",
            )
        return ""
