"""Writing, safely: commits whole or absent, and locks that go with the process that holds them.

Owns every write that must survive a crash. Never writes to a path that was opened for reading: a new file is staged
beside the target, synced, and renamed over it (safetensors' own `save_file` does not sync; some versions tear).
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from .reading import FileError, open_regular, open_to_write

__all__ = [
    "DISK_FULL",
    "atomic_write",
    "atomic_write_bytes",
    "atomic_write_json",
    "clean_partials",
    "fsync_folder",
    "is_locked",
    "locked",
    "new_partial",
    "open_append",
    "replace_patiently",
]

DISK_FULL = tuple(getattr(errno, name) for name in ("ENOSPC", "EDQUOT") if hasattr(errno, name))
"""no room, or none for this account"""

_LOCK_ATTEMPTS = 3
_PARTIAL = re.compile(r"\..+\.(?:\d+|[0-9a-f]{16})\.partial")
"""what a killed write leaves; earlier versions put the process id into the name"""
_HELD = (5, 32, 33, 1224)
"""Windows: access denied, sharing violation, lock violation, mapped into a process"""


def fsync_folder(folder: Path) -> None:
    """Make renames inside `folder` durable; a no-op where folders cannot be opened (Windows)."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """Write a file that appears whole under `path`, or not at all; mode follows the umask.

    The staged name ends in '.partial', an extension no loader lists. Refuses to replace a link, folder or device.
    """
    if os.path.lexists(path) and not stat.S_ISREG(os.lstat(path).st_mode):
        raise FileError(f"{path.name} exists and is not a regular file. Move it away, then try again.")
    if not path.parent.is_dir():
        missing = next(p for p in (*reversed(path.parent.parents), path.parent) if not p.is_dir())
        problem = "is not a folder" if os.path.lexists(missing) else "does not exist"
        raise FileError(f"Folder {missing} {problem}, so {path.name} cannot be written. Make it, or choose another.")
    staged = new_partial(path)
    try:
        with open(staged, "xb") as file:
            _hold(file)
            yield file
            file.flush()
            os.fsync(file.fileno())
        replace_patiently(staged, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            staged.unlink()
        if isinstance(error, OSError) and error.errno is not None and error.filename is None:
            error.filename = os.fspath(path)  # a failed write does not say what it wrote
        raise
    fsync_folder(path.parent)


def new_partial(path: Path) -> Path:
    """Returns a name beside `path` for what is not yet whole; nobody else has it, in whatever container or machine."""
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.partial")


def _hold(file: BinaryIO) -> None:
    """Mark a staged file as being written, for `clean_partials`. Windows lets nobody delete an open file anyway."""
    if os.name != "nt":
        with contextlib.suppress(OSError):  # a file system without locks: its age protects it
            _lock(file)


def clean_partials(folder: Path, older_than_s: float = 3600.0) -> int:
    """Delete what killed writes left in `folder`, once it is so old that nobody writes it; how many files.

    What a living process still writes stays, however old.
    """
    limit, removed = time.time() - older_than_s, 0
    for name in os.listdir(folder) if folder.is_dir() else ():
        path = folder / name
        if _PARTIAL.fullmatch(name):
            with contextlib.suppress(OSError):
                facts = os.lstat(path)
                if stat.S_ISREG(facts.st_mode) and facts.st_mtime <= limit and not is_locked(path):
                    os.unlink(path)
                    removed += 1
    return removed


def replace_patiently(source: Path, target: Path, attempts: int = 10) -> None:
    """os.replace of a file or folder: on Windows a reader, or a virus scanner, makes it fail for a moment."""
    for attempt in range(attempts):
        try:
            os.replace(source, target)
            return
        except OSError as error:
            held = isinstance(error, PermissionError) or getattr(error, "winerror", None) in _HELD
            if not held or attempt == attempts - 1:
                raise
            time.sleep(0.05 * (attempt + 1))


def atomic_write_bytes(path: Path, data: bytes) -> None:
    """Write bytes at hand by `atomic_write`."""
    with atomic_write(path) as file:
        file.write(data)


def atomic_write_json(path: Path, data: Any) -> None:
    """Write JSON by `atomic_write`, readable and stable in order."""
    # Half of a character, as in a note that was cut in an emoji, has no UTF-8; JSON spells it as this very escape.
    atomic_write_bytes(
        path, (json.dumps(data, indent=2, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")
    )


def open_append(path: Path | str) -> BinaryIO:
    """Open for appending, unbuffered, making the file; FileError unless it is a regular file.

    A folder may come from a stranger: what is written there must not go through a link into another file, and no pipe
    may make the writer wait (rule S16). A file with other names too (hard links, as `cp -al` and programs that look for
    copies make them) becomes a copy of its own first; what the others name stays as it is.
    """
    file = os.fdopen(open_to_write(path), "ab", buffering=0)
    if os.fstat(file.fileno()).st_nlink > 1:
        file.close()
        with atomic_write(Path(path)) as copy, open_regular(path, follow_links=False) as shared:
            shutil.copyfileobj(shared, copy, 4 << 20)
        file = os.fdopen(open_to_write(path), "ab", buffering=0)
    if os.fstat(file.fileno()).st_nlink > 1:  # somebody makes links faster than they are broken
        file.close()
        raise FileError(
            f"{os.path.basename(path)} is also another file's name (a hard link), which writing would change. Put a "
            "copy in its place, or move it away."
        )
    return file


@contextlib.contextmanager
def locked(path: Path, busy: str) -> Iterator[None]:
    """Hold an exclusive lock on `path` (made if needed); FileError(`busy`) when another process holds it.

    The system releases it with the process, so a crash leaves no stale lock.
    """
    with os.fdopen(open_to_write(path), "ab") as file:
        for attempt in range(_LOCK_ATTEMPTS):
            try:
                _lock(file)
                break
            except OSError as error:
                if attempt == _LOCK_ATTEMPTS - 1:
                    raise FileError(busy) from error
                time.sleep(0.05)  # somebody may only be looking
        yield


def is_locked(path: Path) -> bool:
    """Returns whether a process holds `locked(path)` now. Writes nothing, and makes no file."""
    try:
        with open_regular(path, follow_links=False) as file:
            _lock(file)  # given back when the file is closed
    except FileError:
        return False
    except OSError:
        return True
    return False


def _lock(file: BinaryIO) -> None:
    if os.name == "nt":
        import msvcrt

        file.seek(0)
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
    else:
        import fcntl

        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
