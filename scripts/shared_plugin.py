"""A pytest plugin for scripts/test.py: test files that share an import of seconds run in one process.

ComfyUI, diffusers and PEFT take four to five CPU seconds each to import, packages of optimizers two, torch's compiler
one and a half, and the process that workers and scripts are forked from takes three to start. Without this plugin each
process of pytest-xdist would pay for them. Other files are distributed as by `--dist loadfile`.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler.loadscope import LoadScopeScheduling

SHARED: dict[str, dict[str, tuple[str, ...]]] = {
    "comfy": {"ComfyUI": ("comfy_script",)},
    "unit": {
        "packages": (
            *("peer_script", "import peft", "from peft", "from diffusers", "adamw8bit", "pytorch_optimizer"),
            *("import IN_CI, need", "torch.compile", "needs_compiler", "_inductor"),
        ),
        "forks": ("ForkServer", "RunScript", "RunCommand"),
    },
}
"""layer -> what files share -> words in these files; of several the first counts. The layer is the first word of -m,
"unit" for any other word"""


@cache
def scope_of(file: str, root: Path, layer: str) -> str:
    """Returns what a test file shares with others, else the file."""
    text = (root / file).read_text(encoding="utf-8")
    return next((shared for shared, words in SHARED[layer].items() if any(one in text for one in words)), file)


class ByWhatIsShared(LoadScopeScheduling):
    """Distributes files, those that share something together."""

    def _split_scope(self, nodeid: str) -> str:
        first = str(self.config.getoption("markexpr") or "unit").split()[0]
        return scope_of(nodeid.partition("::")[0], self.config.rootpath, first if first in SHARED else "unit")


@pytest.hookimpl(tryfirst=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByWhatIsShared:
    """Overrides --dist."""
    return ByWhatIsShared(config, log)
