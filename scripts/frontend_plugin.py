"""A pytest plugin for scripts/test.py: all tests of one frontend run in one process, in the order they were found.

A server and a Chromium are started per process and frontend, so a process with both frontends would start each of them
again and again. pytest-xdist 3.8 has `--dist loadgroup` for this, but writes the group where pytest 9.2 does not look,
and then hands out single tests. This scheduler reads the frontend from the test's own name.
"""

from __future__ import annotations

from typing import Any

import pytest
from xdist.scheduler.loadscope import LoadScopeScheduling


def frontend_of(nodeid: str) -> str:
    """The first parameter of a test's name: `1.58.1` of `test_x[1.58.1-vue]`. Without one, the whole name."""
    parameters = nodeid.rpartition("[")[2] if nodeid.endswith("]") else nodeid
    return parameters.removesuffix("]").partition("-")[0]


class ByFrontend(LoadScopeScheduling):
    """Hands out whole frontends."""

    def _split_scope(self, nodeid: str) -> str:
        return frontend_of(nodeid)


@pytest.hookimpl(tryfirst=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFrontend:
    """Whatever --dist says."""
    return ByFrontend(config, log)
