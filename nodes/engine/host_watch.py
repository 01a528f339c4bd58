"""Watches what a worker holds of the computer's own memory: once the system has killed it, nobody can ask it."""

from __future__ import annotations

import contextlib
import time

from ...wan_core.placement.host import host_bytes, host_total
from ...wan_core.words import filled

_EVERY_S = 2.0
_GIB = 1 << 30
_JUST_STARTED = 64 << 20
"""bytes: a Python that has imported nothing yet holds less, and what it held says nothing"""
_SHORT = 0.1
"""of all memory: with less than this free, the system may well have had to kill somebody"""


class HostWatch:
    """Looks at one process, those it started, and the computer, every two seconds at most."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._next = 0.0
        self.in_words = ""
        """what was seen last"""
        self.was_full = True
        """whether little was free then, as far as anybody knows"""
        self.look()

    def look(self) -> None:
        """Look again, when it is time and the process is still there."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _EVERY_S
        with contextlib.suppress(Exception):  # it is gone, or psutil knows this system not well enough
            import psutil

            process = psutil.Process(self._pid)
            held = sum(one.memory_info().rss for one in (process, *process.children(recursive=True)))
            free, total = host_bytes(), host_total()
            if held and free is not None and total:
                self.was_full = free < _SHORT * total
                free_now = f"{free / _GIB:.1f} of {total / _GIB:.1f} GiB"
                if held > _JUST_STARTED:
                    self.in_words = filled(
                        "it held {held} GiB, and {free} were free when last seen",
                        held=f"{held / _GIB:.1f}",
                        free=free_now,
                    )
                else:
                    self.in_words = filled("{free} were free when last seen", free=free_now)
