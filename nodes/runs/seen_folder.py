"""The folder beside the runs for what was seen of them: looking at a run makes no file in it.

All of it can be deleted at any time: it is made again from the files of the runs.
"""

from __future__ import annotations

from pathlib import Path

from ...wan_core.files import FileError, confine

_FOLDER = "_seen"


def index_file(runs: Path) -> Path | None:
    """Returns the file of what the files of all runs said; None where links lead elsewhere."""
    return _inside(runs, "runs.json")


def curves_file(directory: Path) -> Path | None:
    """The condensed history of a run."""
    return _inside(directory.parent, f"curves/{directory.name}.json")


def _inside(runs: Path, name: str) -> Path | None:
    try:
        path = confine(runs, f"{_FOLDER}/{name}", "what was seen of runs")
    except (FileError, OSError):
        return None
    return path
