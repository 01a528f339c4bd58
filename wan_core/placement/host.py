"""Host memory that this process may use; the limit of a container is often below the memory of the machine."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_GROUPS, _OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
"""folder of Linux control groups, and the file that lists the groups of this process"""


def host_bytes() -> int | None:
    """Returns the available host memory in bytes, with caches that the system can drop; None without psutil."""
    found = _of_computer("available")
    return None if found is None else min(found, *(free for _most, free in _limits()), found)


def host_total() -> int | None:
    """Returns the total host memory in bytes, or the limit of this process; None without psutil."""
    found = _of_computer("total")
    return None if found is None else min(found, *(most for most, _free in _limits()), found)


def lockable_bytes() -> int | None:
    """Returns the limit of pinned host memory in bytes; None if no limit is known.

    Windows pins up to half of the RAM, Linux all of it. WSL2 pins about a gibibyte with some drivers and more with
    others; its limit shows only when it refuses (copies.py).
    """
    total = host_total() if os.name == "nt" else None
    return None if total is None else total // 2


def _of_computer(kind: str) -> int | None:
    try:
        import psutil
    except ImportError:
        return None
    return int(getattr(psutil.virtual_memory(), kind))


# Linux can drop cached pages of files, so they count as free.
_FIRST = ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file"))
_SECOND = ("memory.max", "memory.current", ("inactive_file", "active_file"))
"""for a version of cgroups: names of the files of limit and use, and lines of memory.stat on cached pages of files"""


def _limits() -> Iterator[tuple[int, int]]:
    """Yields limit and free bytes of each control group of this process; in a container, its own is the root."""
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
                yield _limit(root / group, *names)


def _limit(group: Path, limit: str, usage: str, cached: tuple[str, str]) -> tuple[int, int]:
    most, used = (int((group / name).read_text(encoding="ascii")) for name in (limit, usage))
    lines = (line.split() for line in (group / "memory.stat").read_text(encoding="ascii").splitlines())
    files = sum(int(value) for name, value in lines if name in cached)
    return most, max(most - max(used - files, 0), 0)
