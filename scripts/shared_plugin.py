"""A pytest plugin for scripts/test.py: test files that share an import of many seconds run in one process.

ComfyUI, diffusers and PEFT take four to five CPU seconds each to import, and test scripts are forked from a process
that has imported them. Without this plugin each process of pytest-xdist would import them. Other files are distributed
as by `--dist loadfile`.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler.loadscope import LoadScopeScheduling

SHARED = {"comfy": ("comfy_script",), "unit": ("peer_script", "import peft", "from peft", "from diffusers")}
"""layer -> words in files that share an import; the layer is the first word of -m, "unit" for any other word"""


@cache
def scope_of(file: str, root: Path, layer: str) -> str:
    """Returns the layer for a test file that shares an import, else the file."""
    text = (root / file).read_text(encoding="utf-8")
    return layer if any(words in text for words in SHARED[layer]) else file


class ByWhatIsShared(LoadScopeScheduling):
    """Distributes files, those with a shared import together."""

    def _split_scope(self, nodeid: str) -> str:
        first = str(self.config.getoption("markexpr") or "unit").split()[0]
        return scope_of(nodeid.partition("::")[0], self.config.rootpath, first if first in SHARED else "unit")


@pytest.hookimpl(tryfirst=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByWhatIsShared:
    """Overrides --dist."""
    return ByWhatIsShared(config, log)
