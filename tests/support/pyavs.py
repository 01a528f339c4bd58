"""The video child on the oldest and the newest PyAV that is supported, beside the one that is installed.

`scripts/test.py` puts them below .cache/pyav, a folder a version, each with the path of the Python it was made for (the
wheels of PyAV 19 need Python 3.12, whatever runs the tests). WAN_TRAINER_PYAVS names another folder.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from unittest import mock

import pytest

from wan_core.video import VideoProcess

INSTALLED = "installed"
OLDEST, NEWEST = "17.1.0", "19.0.2"


class VideoProcessOn(VideoProcess):
    """A VideoProcess whose child runs under another Python, with another PyAV."""

    def __init__(self, python: str, packages: Path) -> None:
        super().__init__()
        self._python, self._packages = python, packages

    def _running(self):
        with (
            mock.patch.object(sys, "executable", self._python),
            mock.patch.dict(os.environ, {"PYTHONPATH": str(self._packages)}),
        ):
            return super()._running()


def video_on(version: str) -> VideoProcess:
    """A child with that PyAV; the test is skipped where it is not there, and says what is missing."""
    if version == INSTALLED:
        return VideoProcess()
    root = Path(__file__).resolve().parents[2]
    folder = Path(os.environ.get("WAN_TRAINER_PYAVS") or root / ".cache" / "pyav") / version
    try:
        python = (folder / "python.txt").read_text(encoding="utf-8").strip()
    except OSError:
        pytest.skip(f"no PyAV {version}: python3 scripts/test.py fetches it (19 needs a Python 3.12 or newer)")
    return VideoProcessOn(python, folder)
