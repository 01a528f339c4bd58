"""The list of runs: a summary of each, and the settings in which they differ from each other."""

from __future__ import annotations

import json
from pathlib import Path

from ...wan_core.errors import WanTrainerError
from ..engine.live_runs import LiveRuns
from ..runs.publish import published
from .recorded import DAMAGED, RECORDED, Data
from .run_folders import list_runs
from .summary import summary

_LONGEST = 200
"""characters of a setting that is listed, as JSON"""


def all_summaries(runs: Path, live: LiveRuns, loras: Path) -> list[Data]:
    """Returns SUMMARY of every run that can be read, the live and newest first, each with its own `settings`."""
    found: list[tuple[Data, dict[str, str]]] = []
    there = published(loras)
    for _, directory in list_runs(runs):
        try:
            run = RECORDED.of(directory)
            found.append((summary(run, live.get(directory.name), loras, there), run.settings))
        except (WanTrainerError, OSError, *DAMAGED):
            continue  # of another version, damaged, or being deleted
    differ = _differing([settings for _, settings in found])
    listed = [{**about, "settings": _shown(settings, differ)} for about, settings in found]
    return sorted(listed, key=lambda about: (about["live"], about["updated"]), reverse=True)


def _differing(runs: list[dict[str, str]]) -> set[str]:
    """Returns the settings that are not the same in all runs: an answer lists thousands of runs."""
    values: dict[str, set[str]] = {}
    for settings in runs:
        for name, text in settings.items():
            values.setdefault(name, set()).add(text)
    return {name for name, known in values.items() if len(known) > 1}


def _shown(settings: dict[str, str], differ: set[str]) -> Data:
    return {name: json.loads(text) for name, text in settings.items() if name in differ and len(text) <= _LONGEST}
