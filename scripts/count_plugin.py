"""A pytest plugin that writes the totals of a run to the file WAN_TRAINER_COUNTS, for scripts/test.py."""

from __future__ import annotations

import json
import os
from typing import Any


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Count as pytest's own closing line does."""
    target = os.environ.get("WAN_TRAINER_COUNTS")
    if target:
        kinds = ("passed", "failed", "error", "skipped", "xfailed", "xpassed")
        counts = {kind: len(terminalreporter.stats.get(kind, [])) for kind in kinds}
        with open(target, "w", encoding="utf-8") as file:
            json.dump(counts, file)
