"""Third-party packages: supported versions, pip lines, and all imports by name.

Imported names are constants of our code, never from a graph, file or request. This file imports nothing heavy and runs
on Python 3.7, where it reports the old version.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import os
import re
import site
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from typing import Any

from .errors import DependencyError
from .words import first_line

PYTHON_FLOOR = (3, 10)
TORCH_FLOOR = (2, 6)
ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""environment variables of torch's CUDA allocator; the second name is older and every version reads it"""


def end_under_old_python() -> None:
    """Under an old Python, print one sentence and exit with code 5."""
    try:
        _check_python()
    except DependencyError as error:
        sys.stderr.write(f"{error}\n")
        raise SystemExit(int(error.exit_code)) from None


@contextmanager
def first_import(package: str) -> Iterator[None]:
    """Disables the garbage collector during the first import of `package`, then freezes the imported objects.

    For worker processes only: repeated collections during imports took a quarter of a worker's start.
    """
    if package in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()  # Else the first collection would scan all imported objects, for 0.6 s.
        gc.enable()


def check_versions() -> None:
    """Raise DependencyError if Python or torch is older than supported."""
    _check_python()
    torch = version_of("torch")
    if not torch:
        raise DependencyError(
            f"Wan Trainer needs torch 2.6 or newer, which {sys.executable} does not have. Start it with ComfyUI's own "
            "Python."
        )
    if _numbers(torch) < TORCH_FLOOR:
        raise DependencyError(
            "Wan Trainer needs torch 2.6 or newer, but torch {torch} is installed. Update the torch of this ComfyUI, "
            "with torchvision and torchaudio from the same index, and start again.",
            torch=torch,
        )


def _check_python() -> None:
    if sys.version_info < PYTHON_FLOOR:
        here = ".".join(str(number) for number in sys.version_info[:3])
        raise DependencyError(
            f"Wan Trainer needs Python 3.10 or newer; this is Python {here} ({sys.executable}). Use a ComfyUI with a "
            "newer Python."
        )


def version_of(package: str) -> str:
    """Returns the installed version of `package`, or ''. Imports it only if it has no metadata."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        pass
    try:
        return str(getattr(imported(package), "__version__", ""))
    except Exception:  # The package is missing or broken; its import for use reports why.
        return ""


OPTIMIZER_MODULES = (
    "torch.optim",
    "torchao.optim",
    "bitsandbytes.optim",
    "pytorch_optimizer",
    "prodigyopt",
    "schedulefree",
)
"""packages whose optimizer classes a graph may name (S20)"""
_LONGEST_NAME = 200


def named_optimizer(path: str) -> tuple[str, str]:
    """Returns (one of OPTIMIZER_MODULES, class name) of a dotted path; ("", "") for other texts.

    Imports nothing. Submodules are dropped: torch.optim.sgd.SGD gives ("torch.optim", "SGD").
    """
    if len(path) > _LONGEST_NAME or not path.isascii() or not all(part.isidentifier() for part in path.split(".")):
        return "", ""
    inside = next((module for module in OPTIMIZER_MODULES if path.startswith(f"{module}.")), "")
    return (inside, path.rpartition(".")[2]) if inside else ("", "")


def imported(module: str) -> Any:
    """Returns the imported `module`, never a name from user data. Raises ImportError also if the import exits."""
    try:
        return importlib.import_module(module)
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as error:  # SystemExit of packages that parse sys.argv at import
        raise ImportError(f"{module} ends Python when it is imported ({first_line(error)})") from error


def check_place(package: str) -> None:
    """Checks where the top-level `package` would be imported from. Raises ModuleNotFoundError if it is missing, and
    DependencyError if it is outside of Python's library folders, for example in ComfyUI's folder.
    """
    try:
        found = importlib.util.find_spec(package)
    except ValueError:  # a module in sys.modules without a spec
        raise DependencyError(
            f"{package} was imported without a file, so it is not used. Restart without the code that created it."
        ) from None
    if found is None or found.origin is None:  # a namespace package: any folder of that name
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)
    # abspath, not realpath: an installer (uv) may link files of a library folder to its own cache.
    inside = next(iter(found.submodule_search_locations or ()), found.origin)
    if not _is_library(os.path.dirname(os.path.abspath(inside))):
        raise DependencyError(
            f"{package} would be imported from {inside}, which is no library folder of this Python. Remove it there, "
            "and install the package with pip."
        )


def _is_library(folder: str) -> bool:
    """Returns whether `folder` is a library folder, or an `.egg` of `setup.py install` in one."""
    above = os.path.dirname(folder) if folder.endswith(".egg") else folder
    return os.path.realpath(above) in _library_folders()


def _library_folders() -> set[str]:
    """Returns the library folders of this Python, of its virtual environment's base, and of the user."""
    found = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), site.getusersitepackages()]
    # getsitepackages of Windows includes the folder of Python itself, which is no library folder.
    found += [p for p in site.getsitepackages() if os.path.basename(p) in ("site-packages", "dist-packages")]
    return {os.path.realpath(folder) for folder in found}


def pip_line(*requirements: str, upgrade: bool = False) -> str:
    """Returns pip's install command for this Python. `requirements` are constants, because users paste the command
    into a shell.
    """
    python = f'"{sys.executable}"' if " " in sys.executable else sys.executable or "python"
    return " ".join([python, "-m pip install", *(["-U"] if upgrade else []), *(f'"{r}"' for r in requirements)])


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])
