"""A pytest plugin for scripts/test.py: test files that ask for the fixture `comfy_script` run in one process.

That process imports ComfyUI once, in five CPU seconds, and forks each script from it; with a file here and a file there
each process of pytest-xdist would do so. All other files are handed out whole and singly, as by `--dist loadfile`.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler.loadscope import LoadScopeScheduling

SHARED = "comfy_script"


@cache
def scope_of(file: str, root: Path) -> str:
    """The fixture that a test file shares with others, or else the file."""
    return SHARED if SHARED in (root / file).read_text(encoding="utf-8") else file


class ByWhatIsShared(LoadScopeScheduling):
    """Hands out files, those of one fixture together."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid.partition("::")[0], self.config.rootpath)


@pytest.hookimpl(tryfirst=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByWhatIsShared:
    """Whatever --dist says."""
    return ByWhatIsShared(config, log)
