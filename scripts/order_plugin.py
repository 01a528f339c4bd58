"""A pytest plugin for scripts/test.py: files that last long come first, so that no worker ends with one alone, and
files without a test of the layer are not imported. With --quick, tests that last are left out.

pytest-xdist hands whole files to its workers, in the order given here. A test marked `lasts(25)` counts 25 seconds, one
marked `slow` 10, any other next to nothing.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

_SLOW_S, _OTHER_S = 10.0, 0.005
_QUICK_S = 0.5


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help=f"leave out what is marked to last {_QUICK_S} s or more")


def seconds_of(item: pytest.Item) -> float:
    """What a test is expected to take, by its markers."""
    if lasts := item.get_closest_marker("lasts"):
        return float(lasts.args[0])
    return _SLOW_S if item.get_closest_marker("slow") else _OTHER_S


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Longest file first; inside a file the order stays. After deselection, so only what will run counts."""
    if config.getoption("quick"):
        lasting = [item for item in items if seconds_of(item) >= _QUICK_S]
        config.hook.pytest_deselected(items=lasting)
        items[:] = [item for item in items if seconds_of(item) < _QUICK_S]
    seconds: Counter[Path] = Counter()
    for item in items:
        seconds[item.path] += seconds_of(item)  # type: ignore[assignment]
    items.sort(key=lambda item: -seconds[item.path])


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """True for a test file that never names the marker which the expression of -m begins with."""
    layer = str(config.getoption("markexpr") or "not").split()[0]
    if layer == "not" or collection_path.suffix != ".py" or not collection_path.name.startswith("test_"):
        return None
    return True if f"mark.{layer}" not in collection_path.read_text(encoding="utf-8") else None
