"""A full card on Windows: its driver moves what does not fit into the computer's own memory, and steps crawl.

Nothing fails then, so nothing else would say it. It shows in two ways: a process holds more than the card has, or its
steps do their arithmetic several times slower than the first ones did while the card is full.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence

import torch

from ..events import StepDone
from ..placement import total_bytes
from ..words import filled

_FIRST, _LAST = 5, 3
"""steps whose median is the usual speed, and whose median is today's"""
_SLOWER = 4.0
_FULL = 0.9
"""of the card: the rest is what its driver and the desktop hold"""
_GIB = 1 << 30


def _slowdown(speeds: Sequence[float]) -> float:
    """Returns how many times slower the last steps were than the first ones; 1.0 while there are too few of them.

    `speeds`: arithmetic per second of each step, which is the same for clips of every size.
    """
    if len(speeds) < _FIRST + _LAST:
        return 1.0
    now = statistics.median(speeds[-_LAST:])
    return statistics.median(speeds[:_FIRST]) / now if now > 0 else 1.0


class SpillWatch:
    """Notices the spill of one run: one remark, once."""

    def __init__(self, totals: Mapping[str, int]) -> None:
        """`totals`: bytes of each card, by the name of its device."""
        self._totals = totals
        self._speeds: list[float] = []
        self._said = False

    @classmethod
    def on(cls, devices: Iterable[str]) -> SpillWatch | None:
        """Returns a watch on these devices; None where no driver moves memory away by itself."""
        cards = {name: total_bytes(torch.device(name)) for name in devices if torch.device(name).type == "cuda"}
        return cls(cards) if cards and sys.platform == "win32" else None

    def remark(self, step: StepDone) -> str:
        """Returns what to say after `step`; "" while there is nothing to say, or it was said before."""
        if step.tflops:
            self._speeds = [*self._speeds[:_FIRST], *self._speeds[_FIRST:][-_LAST:], step.tflops]
        slower = _slowdown(self._speeds)
        for name, total in self._totals.items():
            values = step.memory.get(name, {})
            held = max(values.get("reserved") or 0, values.get("peak") or 0)
            if self._said or held <= (_FULL * total if slower >= _SLOWER else total):
                continue
            self._said = True
            return filled(
                "{device} is full ({held} of {total} GiB), so Windows moves memory of this run into the "
                "computer's own, and steps take several times longer. Stop it, set memory to auto in Wan Train "
                "Settings, take other programs off the GPU, and press Run again: it goes on after its last "
                "saved step.",
                device=name,
                held=f"{held / _GIB:.1f}",
                total=f"{total / _GIB:.1f}",
            )
        return ""
