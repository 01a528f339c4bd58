"""The log.txt of a run: what its processes wrote, newest last, without what libraries write into every log."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ...wan_core.files import FileError, open_regular

NEXT_LOG = "log.next.txt"
"""beside the log of a run, of processes that began while another program kept that for itself"""
_NOISE = re.compile(r"^[WI]\d{4} \d\d:\d\d:|Warning: |^\s*warnings\.warn\(")


def log_tail(log: Path, most: int, start: int = 0) -> str:
    """Returns the whole lines among the last `most` bytes that were written after byte `start`; "" without a log."""
    try:
        with open_regular(log, follow_links=False) as file:
            end = file.seek(0, os.SEEK_END)
            begins = max(start, end - most, 0)
            file.seek(begins)
            read = file.read(most)
            if begins > start:  # within a line, most likely
                read = read.partition(b"\n")[2] or read
            return read.decode("utf-8", "replace")
    except (OSError, FileError):
        return ""


def without_noise(text: str) -> list[str]:
    """Returns the lines of a log that say something of the run."""
    return [line for line in text.splitlines() if not _NOISE.search(line)]
