"""A pytest plugin for scripts/test.py: test files that ask for one of the fixtures SHARED run in one process.

That process imports ComfyUI, or diffusers, once, in five CPU seconds, and forks each script from it; with a file here
and a file there each process of pytest-xdist would do so. All other files are handed out whole and singly, as by
`--dist loadfile`.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler.loadscope import LoadScopeScheduling

SHARED = {"comfy": "comfy_script", "unit": "peer_script"}
"""by the layer of which -m is asked for; that of the others is the layer of units"""


@cache
def scope_of(file: str, root: Path, shared: str) -> str:
    """The fixture that a test file shares with others, or else the file."""
    return shared if shared in (root / file).read_text(encoding="utf-8") else file


class ByWhatIsShared(LoadScopeScheduling):
    """Hands out files, those of one fixture together."""

    def _split_scope(self, nodeid: str) -> str:
        layer = str(self.config.getoption("markexpr") or "unit").split()[0]
        return scope_of(nodeid.partition("::")[0], self.config.rootpath, SHARED.get(layer, SHARED["unit"]))


@pytest.hookimpl(tryfirst=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByWhatIsShared:
    """Whatever --dist says."""
    return ByWhatIsShared(config, log)
