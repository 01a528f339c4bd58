"""A real file system of a few hundred KiB, mounted where a test wants it. Linux, and only where mounting is allowed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


class SmallDisk:
    """A mounted tmpfs."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._filler = folder, folder / "filler"

    def fill(self, leave: int = 0) -> None:
        """Fills it up but for `leave` bytes."""
        with open(self._filler, "ab", buffering=0) as file:
            for size in (65536, 4096):
                try:
                    while self.free >= leave + size:
                        file.write(bytes(size))
                except OSError:
                    pass

    def make_room(self) -> None:
        self._filler.unlink()

    @property
    def free(self) -> int:
        facts = os.statvfs(self.folder)
        return facts.f_bavail * facts.f_frsize


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[SmallDisk]:
    """Inside, `folder` is a file system of that size; skips where none can be mounted."""
    folder.mkdir(parents=True, exist_ok=True)
    if not sys.platform.startswith("linux"):
        pytest.skip("a tmpfs is mounted on Linux only")
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True, text=True
    )
    if made.returncode:
        pytest.skip(f"mounting a tmpfs needs the right to do it: {made.stderr.strip()[-200:]}")
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "-l", folder], check=True)
