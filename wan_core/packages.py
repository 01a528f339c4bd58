"""Other packages: the versions the engine bears, and the pip line that brings one.

Imports nothing heavy and uses nothing newer than Python 3.7, because it also speaks where the rest cannot be imported.
"""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata

from .errors import DependencyError

__all__ = [
    "check_versions",
    "end_under_old_python",
    "first_import",
    "pip_line",
    "version_of",
]

PYTHON_FLOOR = (3, 10)
TORCH_FLOOR = (2, 6)


def end_under_old_python() -> None:
    """Leave with one sentence and code 5 under a Python that could not even import the command line."""
    try:
        _check_python()
    except DependencyError as error:
        sys.stderr.write(f"{error}\n")
        raise SystemExit(int(error.exit_code)) from None


@contextmanager
def first_import(package: str) -> Iterator[None]:
    """Inside, where `package` is not imported yet, nobody looks for garbage; what is there at the end stays unsearched.

    For processes of our own alone. What an import makes stays, and going through all of it again and again as it grows
    was a quarter of a worker's start.
    """
    if package in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()  # else the first search goes through all of it once more: 0.6 s
        gc.enable()


def check_versions() -> None:
    """Raise DependencyError, one sentence, where this Python or torch is older than anything the engine runs with."""
    _check_python()
    torch = version_of("torch")
    if not torch:
        raise DependencyError(
            f"Wan Trainer needs torch 2.6 or newer, which {sys.executable} does not have. Start it with ComfyUI's own "
            "Python."
        )
    if _numbers(torch) < TORCH_FLOOR:
        raise DependencyError(
            f"Wan Trainer needs torch 2.6 or newer; here it is torch {torch}. Update the torch of this ComfyUI, with "
            "torchvision and torchaudio from the same index, and start again."
        )


def _check_python() -> None:
    if sys.version_info < PYTHON_FLOOR:
        here = ".".join(str(number) for number in sys.version_info[:3])
        raise DependencyError(
            f"Wan Trainer needs Python 3.10 or newer; this is Python {here} ({sys.executable}). Use a ComfyUI with a "
            "newer Python."
        )


def version_of(package: str) -> str:
    """The installed version of `package`, or '' when there is none. Imports it only where no metadata is."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        pass
    try:
        return str(getattr(__import__(package), "__version__", ""))
    except Exception:  # absent, or broken in a way that the caller finds out by itself
        return ""


def pip_line(*requirements: str, upgrade: bool = False) -> str:
    """The command that installs `requirements` for this very Python, whatever `python` means in a shell."""
    python = f'"{sys.executable}"' if " " in sys.executable else sys.executable or "python"
    return " ".join([python, "-m pip install", *(["-U"] if upgrade else []), *(f'"{r}"' for r in requirements)])


def _numbers(version: str) -> tuple[int, ...]:
    """The first two numbers of a version; local and pre-release parts do not count."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])
