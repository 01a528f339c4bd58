"""What Windows refuses of files, on Linux: a preloaded library, and a Python that lacks what Windows' own lacks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

_SOURCE = Path(__file__).parent / "windows"


@contextmanager
def windows_rules() -> Iterator[dict[str, str]]:
    """The environment of a process that knows them; skips where they cannot be had. `below` says where they hold."""
    if sys.platform != "linux":
        pytest.skip("Windows' file rules are a library of Linux")
    if (compiler := shutil.which("cc")) is None:
        pytest.skip("no cc: Windows' file rules are a library in C (Debian: apt install gcc libc6-dev)")
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "rules.so"
        words = [compiler, "-O2", "-Wall", "-shared", "-fPIC", "-o", library, _SOURCE / "rules.c", "-ldl"]
        subprocess.run(words, check=True)
        yield {"LD_PRELOAD": str(library), "PYTHONPATH": str(_SOURCE)}


def below(folder: Path) -> dict[str, str]:
    """The environment of a process for which they hold in that folder."""
    return {"WINDOWS_RULES": os.path.realpath(folder)}


@contextmanager
def held(*files: Path, kept: bool = False) -> Iterator[None]:
    """Inside, this process has the files open, as a viewer does; `kept`: for itself, as an editor may."""
    import fcntl

    with ExitStack() as opened:
        for file in files:
            handle = opened.enter_context(file.open("ab"))
            if kept:
                fcntl.lockf(handle, fcntl.LOCK_EX)
        yield
