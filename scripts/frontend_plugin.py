"""A pytest plugin for scripts/test.py: all tests of one frontend run in one process, in collection order.

A server and a Chromium are started per process and frontend. pytest-xdist 3.8 has `--dist loadgroup` for this, but
pytest 9.2 does not read the group from where xdist writes it, and single tests are distributed. This scheduler takes
the frontend from the test's name.
"""

from __future__ import annotations

from typing import Any

import pytest
from environment import OTHER_FRONTEND
from xdist.scheduler.loadscope import LoadScopeScheduling

FRONTENDS = ("shipped", OTHER_FRONTEND)


def frontend_of(nodeid: str) -> str:
    """The frontend among the parameters of a test's name: `1.58.1` of `test_x[1.58.1-vue]`. Without one, the name."""
    parameters = nodeid.rpartition("[")[2].removesuffix("]").split("-")
    return next((name for name in parameters if name in FRONTENDS), nodeid)


class ByFrontend(LoadScopeScheduling):
    """Distributes tests by frontend."""

    def _split_scope(self, nodeid: str) -> str:
        return frontend_of(nodeid)


@pytest.hookimpl(tryfirst=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFrontend:
    """Overrides --dist."""
    return ByFrontend(config, log)
