"""File locks between processes. A lock ends with its process.

NFS without a lock daemon and many FUSE volumes have no locks. There, the lock is on a file in this machine's folder of
temporary files, which other machines and containers do not see.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from .inside import open_to_append
from .reading import FileError, open_regular

_HELD = (errno.EAGAIN, errno.EWOULDBLOCK)
"""errno of a lock that another process holds; all other errors mean that the file system has no locks"""
_HELD_ON_WINDOWS = (errno.EACCES, errno.EDEADLK)
_ATTEMPTS = 3


@contextlib.contextmanager
def locked(path: Path, busy: str, below: Path | None = None) -> Iterator[bool]:
    """Hold an exclusive lock on `path`, which is created if needed; FileError(`busy`) if another process holds it.

    Yields whether the file system has locks; without them, the lock excludes processes of this machine alone.
    """
    with open_to_append(path, below) as file:
        if has_locks := _taken(file, busy):
            yield has_locks
            return
    with open_to_append(_on_this_machine(path)) as file:
        _taken(file, busy)
        yield False


def is_locked(path: Path) -> bool:
    """Returns whether a process holds `locked(path)`. Writes nothing and creates no file."""
    try:
        for one in (path, _on_this_machine(path)):
            with open_regular(one, follow_links=False) as file:
                is_ours = _try_lock(file, shared=True)  # released when the file is closed
            if is_ours is not None:
                return not is_ours
    except FileError:
        return False
    except OSError:
        return True
    return False


def _on_this_machine(path: Path) -> Path:
    name = hashlib.sha256(os.fsencode(os.path.realpath(path))).hexdigest()[:32]
    return Path(tempfile.gettempdir()) / f"wan_trainer-{name}.lock"


def _taken(file: BinaryIO, busy: str) -> bool:
    """Lock an open file; returns whether the file system has locks. FileError(`busy`) if another process holds it."""
    for attempt in range(_ATTEMPTS):
        if (is_ours := _try_lock(file)) is not False:
            return is_ours is not None
        if attempt < _ATTEMPTS - 1:
            time.sleep(0.05)  # `is_locked` of another process holds the lock briefly
    raise FileError(busy)


def mark_as_written(file: BinaryIO) -> None:
    """Mark a file as being written (see `is_written`). On Windows an open file cannot be deleted anyway."""
    if os.name != "nt":
        _try_lock(file)  # Where the file system has no locks, `clean_partials` checks only the age of the file.


def is_written(path: Path) -> bool:
    """Returns whether a process is writing a marked file; False if the file system has no locks."""
    try:
        with open_regular(path, follow_links=False) as file:
            return _try_lock(file, shared=True) is False
    except FileError:
        return False


def _try_lock(file: BinaryIO, *, shared: bool = False) -> bool | None:
    """Returns whether this process got the lock; None if the file system has no locks."""
    try:
        if os.name == "nt":
            import msvcrt

            file.seek(0)  # Windows locks a range of bytes from the current position on
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        else:
            import fcntl

            # NFS grants an exclusive lock only on a file that is open for writing, so `is_locked` takes a shared one.
            fcntl.flock(file.fileno(), (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError as error:
        held = _HELD_ON_WINDOWS if os.name == "nt" else _HELD
        return False if error.errno in held else None
    return True
