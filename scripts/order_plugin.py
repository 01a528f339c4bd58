"""A pytest plugin for scripts/test.py: the order of files, and totals of the run.

pytest-xdist distributes files in this order: the longest first, so that no worker ends with a long one. Files without a
test of the layer are not imported. --quick leaves out long tests. A test marked `lasts(25)` counts 25 seconds, one
marked `slow` 10, any other next to nothing. Totals and slowest tests go to the file WAN_TRAINER_COUNTS.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

_SLOWEST = 10

_SLOW_S, _OTHER_S = 10.0, 0.005
_QUICK_S = 0.5


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help=f"leave out what is marked to last {_QUICK_S} s or more")


def seconds_of(item: pytest.Item) -> float:
    """Returns the expected seconds of a test, by its markers."""
    if lasts := item.get_closest_marker("lasts"):
        return float(lasts.args[0])
    return _SLOW_S if item.get_closest_marker("slow") else _OTHER_S


@pytest.hookimpl(wrapper=True)
def pytest_collect_directory() -> Generator[None, pytest.Collector | None, pytest.Collector | None]:
    """Lets every second process of pytest-xdist import the files from the last one on: it finds the first ones compiled
    by then, with their assertions rewritten, as its neighbour finds the last ones."""
    folder = yield
    if folder is not None and os.environ.get("PYTEST_XDIST_WORKER", "gw0")[-1] in "13579":
        forward = folder.collect
        folder.collect = lambda: list(forward())[::-1]
    return folder


@pytest.hookimpl(specname="pytest_collection_modifyitems", tryfirst=True)
def pytest_in_one_order(items: list[pytest.Item]) -> None:
    """The same in every process, whichever file it imports first."""
    items.sort(key=lambda item: item.path.parts)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Longest file first; inside a file the order stays. trylast: only the selected tests count."""
    if config.getoption("quick"):
        lasting = [item for item in items if seconds_of(item) >= _QUICK_S]
        config.hook.pytest_deselected(items=lasting)
        items[:] = [item for item in items if seconds_of(item) < _QUICK_S]
    seconds: Counter[Path] = Counter()
    for item in items:
        seconds[item.path] += seconds_of(item)  # type: ignore[assignment]
    items.sort(key=lambda item: -seconds[item.path])


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """True for a test file without the first marker of -m."""
    layer = str(config.getoption("markexpr") or "not").split()[0]
    if layer == "not" or collection_path.suffix != ".py" or not collection_path.name.startswith("test_"):
        return None
    return True if f"mark.{layer}" not in collection_path.read_text(encoding="utf-8") else None


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Counts as in pytest's closing line; the seconds of a test are the sum of set-up, call and teardown."""
    target = os.environ.get("WAN_TRAINER_COUNTS")
    if target:
        kinds = ("passed", "failed", "error", "skipped", "xfailed", "xpassed")
        counts: dict[str, Any] = {kind: len(terminalreporter.stats.get(kind, [])) for kind in kinds}
        seconds: Counter[str] = Counter()
        for report in (report for reports in terminalreporter.stats.values() for report in reports):
            if hasattr(report, "duration"):
                seconds[report.nodeid] += report.duration
        counts["slowest"] = dict(seconds.most_common(_SLOWEST))
        with open(target, "w", encoding="utf-8") as file:
            json.dump(counts, file)
