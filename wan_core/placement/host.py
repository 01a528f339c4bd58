"""Host memory that this process may use: a container often gets less than the computer has."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

_GROUPS, _OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
"""where Linux says what groups of processes may have, and of which this one is"""


def host_bytes() -> int | None:
    """Returns the host memory that is free, or could be made so at once; None where psutil is missing."""
    found = _of_computer("available")
    return None if found is None else min(found, *(limit.free for limit in _limits()), found)


def host_total() -> int | None:
    """Returns all the host memory that this process could have; None where psutil is missing."""
    found = _of_computer("total")
    return None if found is None else min(found, *(limit.most for limit in _limits()), found)


def lockable_bytes() -> int | None:
    """Returns the host memory that the system page-locks for a GPU; None where no limit is known.

    Windows shares half of the RAM with its GPUs. WSL2 locks about a gibibyte on some drivers and more on others, which
    nothing says before it refuses (copies.py); Linux locks all.
    """
    total = host_total() if os.name == "nt" else None
    return None if total is None else total // 2


def _of_computer(kind: str) -> int | None:
    try:
        import psutil
    except ImportError:
        return None
    return int(getattr(psutil.virtual_memory(), kind))


class _Limit(NamedTuple):
    """The limit of one group of processes, in bytes."""

    most: int
    free: int


class _Names(NamedTuple):
    """The names a version of cgroups gives its files, and the lines of `stat` with what files have in memory."""

    most: str
    used: str
    files: tuple[str, str]


_FIRST = _Names(
    "memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file")
)  # Linux takes these pages back at once
_SECOND = _Names("memory.max", "memory.current", ("inactive_file", "active_file"))


def _limits() -> Iterator[_Limit]:
    """Yields the limit of each group that this process is in; a container sees its own as the root of them all."""
    try:
        lines = _OWN.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        _number, kinds, path = [*line.split(":", 2), "", ""][:3]
        if "memory" in kinds.split(","):
            root, names = _GROUPS / "memory", _FIRST
        elif not kinds:
            root, names = _GROUPS, _SECOND
        else:
            continue
        own = PurePosixPath(path.lstrip("/"))
        for group in (own, *own.parents):
            with contextlib.suppress(OSError, ValueError):  # no such group here, or no limit: "max"
                yield _limit(root / group, names)


def _limit(group: Path, names: _Names) -> _Limit:
    most = int((group / names.most).read_text(encoding="ascii"))
    used = int((group / names.used).read_text(encoding="ascii"))
    lines = (line.split() for line in (group / "memory.stat").read_text(encoding="ascii").splitlines())
    files = sum(int(value) for name, value in lines if name in names.files)
    return _Limit(most, max(most - max(used - files, 0), 0))
