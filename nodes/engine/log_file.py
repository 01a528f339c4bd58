"""The log.txt of a run: what its processes wrote, newest last, without what libraries write into every log."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ...wan_core.files import FileError, open_regular

__all__ = ["log_tail", "without_noise"]

_NOISE = re.compile(r"^[WI]\d{4} \d\d:\d\d:|Warning: |^\s*warnings\.warn\(")


def log_tail(log: Path, most: int, start: int = 0) -> str:
    """Returns the last `most` bytes that were written after byte `start`; "" where there is no such log."""
    try:
        with open_regular(log, follow_links=False) as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(start, end - most, 0))
            return file.read(most).decode("utf-8", "replace")
    except (OSError, FileError):
        return ""


def without_noise(text: str) -> list[str]:
    """Returns the lines of a log that say something of the run."""
    return [line for line in text.splitlines() if not _NOISE.search(line)]
