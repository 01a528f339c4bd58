"""What benchmarks of a running ComfyUI share: CPU seconds of a process."""

from __future__ import annotations

import psutil


def used(process: psutil.Process) -> float:
    """CPU seconds of a process, of the children that ended and of those that run."""
    total = sum(process.cpu_times()[:4])
    for child in process.children(recursive=True):
        try:
            total += sum(child.cpu_times()[:4])
        except psutil.Error:
            continue
    return total
