"""The versions of PyAV that read media exactly, and the sentence for others. Imports nothing heavy."""

from __future__ import annotations

import re

from ..errors import DependencyError
from ..packages import pip_line, version_of

_OLDEST_PYAV = (17, 1)
"""Measured on 14.2 to 19.0: older ones lack the length of frames or the marks of HDR, or are up to 4 levels off."""


def require_pyav() -> None:
    """DependencyError, one sentence with the line to run, unless the installed PyAV reads clips exactly."""
    version = version_of("av")
    if not version:
        raise DependencyError("Reading clips needs the package av (PyAV). Run: {command}", command=_line())
    if problem := outdated(version):
        raise DependencyError(problem)


def outdated(version: str) -> str:
    """Returns what is wrong with a PyAV of that version; empty when nothing is."""
    found = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if found >= _OLDEST_PYAV:
        return ""
    return f"PyAV {version[:20]} does not read clips exactly; {_named()} or newer does. Run: {_line()}"


def _named() -> str:
    return ".".join(str(number) for number in _OLDEST_PYAV)


def _line() -> str:
    return pip_line(f"av>={_named()}")
