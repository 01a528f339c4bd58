"""Files that a program holds open, as Windows has it: nobody renames, replaces or removes one.

For code of this process; windows_rules.py is for whole processes.
"""

from __future__ import annotations

import os
from typing import Any

import pytest


def holding(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Returns the names of the files that are held, none at first. Nobody waits for them to be let go."""
    names: set[str] = set()
    remove, replace = os.unlink, os.replace

    def refuse(*paths: Any) -> None:
        if any(os.path.basename(path) in names for path in paths):
            raise PermissionError(13, "Permission denied", os.fspath(paths[0]))

    def unlink(path: Any, **more: Any) -> None:
        refuse(path)
        remove(path, **more)

    def replacing(source: Any, target: Any, **more: Any) -> None:
        refuse(source, target)
        replace(source, target, **more)

    monkeypatch.setattr(os, "unlink", unlink)
    monkeypatch.setattr(os, "replace", replacing)
    monkeypatch.setattr("time.sleep", lambda _seconds: None)
    return names
