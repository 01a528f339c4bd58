"""The list of runs: a summary of each, and the settings in which they differ from each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ...wan_core.errors import WanTrainerError
from ..engine.live_runs import LiveRuns
from ..runs.publish import published
from .run_folders import list_runs
from .seen_runs import DAMAGED, SEEN
from .summary import summary

_LONGEST = 200
"""of a setting that is told"""


def all_summaries(
    runs: Path, live: LiveRuns, loras: Path, within_s: float | None = None
) -> tuple[list[dict[str, Any]], int]:
    """Returns SUMMARY of every run that can be read, the live and newest first, each with its own `settings`.

    With `within_s` of those that were read by then, and how many are still being read.
    """
    found: list[dict[str, Any]] = []
    there = published(loras)
    SEEN.open(runs)
    told, unread = SEEN.told([directory for _, directory in list_runs(runs)], within_s)
    for directory, seen in told.items():
        try:
            about = summary(directory, live.get(directory.name), loras, there, seen)
        except (WanTrainerError, OSError, *DAMAGED):
            continue  # one that is being deleted
        found.append({**about, "settings": seen.settings})
    if not unread:
        SEEN.keep(runs, [told["id"] for told in found])
    _keep_differences(found)
    return sorted(found, key=lambda s: (s["live"], s["updated"]), reverse=True), unread


def _keep_differences(found: list[dict[str, Any]]) -> None:
    """Leave in each `settings` what is not the same in all of them: thousands of runs are told in one answer."""
    values: dict[str, set[str]] = {}
    for told in found:
        for name, text in told["settings"].items():
            values.setdefault(name, set()).add(text)
    differ = {name for name, known in values.items() if len(known) > 1}
    for told in found:
        texts = {name: text for name, text in told["settings"].items() if name in differ and len(text) <= _LONGEST}
        told["settings"] = {name: json.loads(text) for name, text in texts.items()}
