"""A pytest plugin that writes totals and slowest tests of a run to the file WAN_TRAINER_COUNTS, for scripts/test.py."""

from __future__ import annotations

import json
import os
from collections import Counter
from typing import Any

_SLOWEST = 10


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Count as pytest's own closing line does; a test's seconds are those of set-up, call and teardown together."""
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
