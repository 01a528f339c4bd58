"""Finds run folders by run id, the name of a folder below output/wan_trainer and never a path (rules S1, S19)."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from pathlib import Path

from ...wan_core.errors import ConfigError
from ...wan_core.files import FileError, confine, safe_name
from ...wan_core.job import STATUS_FILES
from .guard import Refused


def find_run(runs: Path, run_id: str) -> Path:
    """Returns the folder of a run, without links. Raises Refused(404) for anything else."""
    # The id must equal the folder's name, also on file systems that ignore case, because live runs are keyed by id and
    # a deletion must not reach another folder.
    with contextlib.suppress(OSError):
        if run_id in os.listdir(runs) and (directory := _folder(runs, run_id)) is not None:
            return directory
    raise Refused(404, "There is no such run.")


def list_runs(runs: Path) -> list[tuple[str, Path]]:
    """Returns (id, folder) of every run that `find_run` accepts, in no order, faster than `find_run`."""
    if not runs.is_dir():
        return []
    base = Path(os.path.realpath(runs))
    with os.scandir(base) as entries:
        names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    if os.name == "nt":  # is_dir(follow_symlinks=False) is true for a junction, so each path is resolved
        return [(name, directory) for name in names if (directory := _folder(runs, name)) is not None]
    return [(name, base / name) for name in names if _is_safe(name) and _is_run(base / name)]


def _is_safe(name: str) -> bool:
    try:
        return bool(safe_name(name, "run id"))
    except ConfigError:
        return False


def _folder(runs: Path, name: str) -> Path | None:
    """Returns the folder `name` of a run in `runs`; None for other folders."""
    try:
        safe_name(name, "run id")
        directory = confine(runs, name, "run id")
    except (ConfigError, FileError, OSError, ValueError):
        return None
    return directory if directory == Path(os.path.realpath(runs), name) and _is_run(directory) else None


def line_number(text: str) -> int:
    """Returns the parameter `since` as a line number. Raises Refused(400) for anything else."""
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise Refused(400, "since must be a line number, 0 or more.")
    return int(text)


def _is_run(directory: Path) -> bool:
    """Returns whether the folder has a run.json that is no link, and no links as status files."""
    links = (stat.S_ISLNK(_mode(directory / name)) for name in STATUS_FILES)
    return stat.S_ISREG(_mode(directory / "run.json")) and not any(links)


def _mode(path: Path) -> int:
    """Returns the mode of a path without following a link; 0 for a missing or unreadable one."""
    try:
        return os.lstat(path).st_mode
    except (OSError, ValueError):
        return 0
