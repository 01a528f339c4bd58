"""Other packages: the versions the engine bears, the pip line that brings one, and whose fault a failed import is.

Imports nothing heavy and uses nothing newer than Python 3.7, because it also speaks where the rest cannot be imported.
"""

from __future__ import annotations

import errno
import gc
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from typing import NamedTuple

from .errors import DependencyError

__all__ = [
    "PEFT",
    "Cause",
    "causes_of",
    "check_versions",
    "end_under_old_python",
    "first_import",
    "pip_line",
    "version_of",
    "why_not_imported",
]

PYTHON_FLOOR = (3, 10)
TORCH_FLOOR = (2, 6)
PEFT = "peft>=0.20"

# Nothing here needs torchao; other packs may. It states no torch in its metadata: pip takes the newest beside any,
# and a wrong one breaks the import of peft, of transformers' models and of diffusers. Each cell was tried:
# docs/versions.md.
_TORCHAO = (((2, 10), ">=0.16"), ((2, 7), ">=0.16,<0.18"), (TORCH_FLOOR, "==0.16.*"))

_TOO_MANY_FILES = (f"[Errno {errno.EMFILE}]", f"[Errno {errno.ENFILE}]")

# Deepest frames that say nothing about who is wrong.
_NEVER_TO_BLAME = ("torch", "wan_core", "importlib", "")


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
    was a quarter of a worker's start: torch, the engine and peft took 4.3 s of CPU time, and take 3.2 s.
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


def torchao_for(torch: str) -> str:
    """The requirement of torchao that works with torch version `torch`."""
    numbers = _numbers(torch)
    return "torchao" + next((wanted for floor, wanted in _TORCHAO if numbers >= floor), _TORCHAO[-1][1])


class Cause(NamedTuple):
    """One link of a failed import, from the outermost to the one that began it."""

    kind: str
    text: str
    missing: str
    """the module a ModuleNotFoundError names"""
    packages: tuple[str, ...]
    """top-level names of the code it went through, outermost first"""


def causes_of(error: BaseException) -> list[Cause]:
    """The chain of `error`, as plain data."""
    found: list[Cause] = []
    link: BaseException | None = error
    while link is not None and len(found) < 50:
        packages: list[str] = []
        frames = link.__traceback__
        while frames is not None:
            package = str(frames.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
            if package not in packages[-1:]:
                packages.append(package)
            frames = frames.tb_next
        missing = (link.name or "") if isinstance(link, ModuleNotFoundError) else ""
        found.append(Cause(type(link).__name__, " ".join(str(link).split())[:300], missing, tuple(packages)))
        link = link.__cause__ or link.__context__
    return found


def why_not_imported(purpose: str, wanted: str, causes: Sequence[Cause], versions: dict[str, str]) -> str:
    """One sentence for `purpose`, whose import of `wanted` (a requirement) failed: who is to blame, and the pip line.

    `versions` are those installed, with torch's. Who is to blame stands in the frames: libraries import each other and
    report the innermost failure in words that name neither.
    """
    package = re.split(r"[<>=!~]", wanted)[0]
    root, torch = causes[-1], versions.get("torch", "")
    reason = f"{root.kind}: {root.text}"
    culprit = _culprit(causes)
    if any(cause.text.startswith(_TOO_MANY_FILES) for cause in causes):
        return (
            f"{purpose} needs {package}, which could not be read because this process may open no more files "
            f"({reason}). Raise the limit (on Linux: ulimit -n 4096) and start again."
        )
    if root.missing.partition(".")[0] == package:
        return f"{purpose} needs {package}, which is not installed. {_run(wanted)}"
    if root.missing and not root.missing.startswith("torch.") and "." not in root.missing:
        return f"{purpose} needs {package}, and {package} needs {root.missing}. {_run(root.missing)}"
    stated = re.match(r"([A-Za-z0-9_.-]+[<>=!~]\S+) is required\b", root.text)
    if stated:
        return f"{purpose} needs {package}, which stumbles over another package ({reason}). {_run(stated.group(1))}"
    if culprit in ("torchvision", "torchaudio"):
        return (
            f"{purpose} needs {package}, which stumbles over a {culprit} that is not for torch {torch} ({reason}). "
            f"Run this, with the index torch came from, and start again: {pip_line(culprit, upgrade=True)}"
        )
    if culprit == "torchao":
        name = f"torchao {versions.get('torchao', '')}".strip()
        return (
            f"{purpose} needs {package}, which stumbles over {name}: that does not go with torch {torch} ({reason}). "
            f"{_run(torchao_for(torch))}"
        )
    if culprit in ("", package) or not versions.get(culprit):
        here = f"{package} {versions[package]}" if versions.get(package) else package
        return f"{purpose} needs {wanted}, and {here} cannot be used ({reason}). {_run(wanted, upgrade=True)}"
    # A package that misses something in torch is too new for it, else it is the one that lags behind.
    too_new = "torch" in root.text or root.kind == "NameError"
    other = f"{culprit}<{versions[culprit]}" if too_new else f"{culprit}>{versions[culprit]}"
    return (
        f"{purpose} needs {package}, which stumbles over {culprit} {versions[culprit]} beside torch {torch} "
        f"({reason}). {_run(other)}"
    )


def _culprit(causes: Sequence[Cause]) -> str:
    """The deepest package the failure went through, torch and the standard library aside."""
    root = causes[-1]
    if "torchao" in root.text:  # peft compares its version without importing it
        return "torchao"
    for cause in reversed(causes):
        for package in reversed(cause.packages):
            if package not in _NEVER_TO_BLAME and package not in sys.stdlib_module_names:
                return package
    return ""


def _run(requirement: str, *, upgrade: bool = False) -> str:
    return f"Run this and start again: {pip_line(requirement, upgrade=upgrade)}"


def _numbers(version: str) -> tuple[int, ...]:
    """The first two numbers of a version; local and pre-release parts do not count."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])
