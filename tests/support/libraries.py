"""Packages that a test plants: where pip installs, or where nothing should ever be imported from."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

__all__ = ["Library", "marking", "plant"]

Library = Callable[[str, str], Path]
"""writes a package of a name with a text where pip installs, for one test"""


def marking(marker: Path, then: str = "") -> str:
    """Returns the text of a module that leaves a file behind when it is imported."""
    return f"import pathlib\npathlib.Path({str(marker)!r}).touch()\n{then}\n"


def plant(folder: Path, name: str, text: str) -> Path:
    """Writes a package; returns its file. A name with dots is a module in it, of which every folder is a package."""
    *above, last = name.split(".")
    for part in above:
        folder = folder / part
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "__init__.py").exists():
            (folder / "__init__.py").touch()
    file = folder / last / "__init__.py"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


def forget(name: str) -> dict[str, object]:
    """Takes a package and its files out of `sys.modules`; returns them, to be put back."""
    found = [one for one in sys.modules if one == name or one.startswith(f"{name}.")]
    return {one: sys.modules.pop(one) for one in found}
