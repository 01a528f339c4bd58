"""Writing, safely: commits whole or absent, and locks that go with the process that holds them.

Owns every write that must survive a crash. Never writes to a path that was opened for reading: a new file is staged
beside the target, synced, and renamed over it (safetensors' own `save_file` does not sync; some versions tear), all
within the folder that was opened for it (`inside.py` says which links are followed).
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

from .inside import NO_FOLDER, OpenFolder, no_own_folder, opened_folder
from .reading import FileError, open_regular

__all__ = [
    "DISK_FULL",
    "atomic_write",
    "atomic_write_bytes",
    "atomic_write_json",
    "clean_partials",
    "fsync_folder",
    "is_locked",
    "is_partial",
    "locked",
    "new_partial",
    "open_append",
]

DISK_FULL = tuple(getattr(errno, name) for name in ("ENOSPC", "EDQUOT") if hasattr(errno, name))
"""no room, or none for this account"""

_LOCK_ATTEMPTS = 3
_PARTIAL = re.compile(r"\..+\.(?:\d+|[0-9a-f]{16})\.partial")
"""what a killed write leaves; earlier versions put the process id into the name"""


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
def atomic_write(path: Path, below: Path | None = None, *, make: bool = True) -> Iterator[BinaryIO]:
    """Write a file that appears whole under `path`, or not at all; mode follows the umask.

    `below` is the folder that it lies in: from there on no link is followed, and folders are made, if `make` says so.
    Without one the file's own folder must be there, and its path may have links. The staged name ends in '.partial', an
    extension no loader lists. Refuses to replace a link, folder or device. An OSError names `path`.
    """
    staged = new_partial(path)
    with _folder_for(path, below, make) as folder:
        if folder.is_regular(path.name) is False:
            raise FileError(f"{path.name} exists and is not a regular file. Move it away, then try again.")
        try:
            with open(staged, "xb", opener=lambda _path, flags: folder.open(staged.name, flags)) as file:
                _hold(file)
                yield file
                file.flush()
                os.fsync(file.fileno())
            folder.rename(staged.name, folder, path.name)
            folder.sync()
        except BaseException as error:
            with contextlib.suppress(OSError):
                folder.remove(staged.name)
            if isinstance(error, OSError) and error.errno is not None and _is_ours(error.filename, staged):
                error.filename, error.filename2 = os.fspath(path), None  # a failed write does not say what it wrote
            raise


def _is_ours(name: object, staged: Path) -> bool:
    return name is None or name in (staged.name, os.fspath(staged))


@contextlib.contextmanager
def _folder_for(path: Path, below: Path | None, make: bool = True) -> Iterator[OpenFolder]:
    """The folder that a file is written into. Raises FileError where it cannot be one."""
    with contextlib.ExitStack() as opened:
        try:
            folder = opened.enter_context(opened_folder(path.parent, below, make=make and below is not None))
        except OSError as error:
            if below is not None and error.errno in NO_FOLDER:
                raise no_own_folder(below, path.parent.relative_to(below).as_posix()) from error
            if error.errno not in (*NO_FOLDER, errno.ENOENT) or (make and below is not None):
                raise
            missing = next((p for p in (*reversed(path.parent.parents), path.parent) if not p.is_dir()), path.parent)
            problem = "is not a folder" if os.path.lexists(missing) else "does not exist"
            raise FileError(
                f"Folder {missing} {problem}, so {path.name} cannot be written. Make it, or choose another."
            ) from error
        yield folder


def new_partial(path: Path) -> Path:
    """Returns a name beside `path` for what is not yet whole; nobody else has it, in whatever container or machine."""
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.partial")


def is_partial(name: str) -> bool:
    """Returns whether a file is called like what is not yet whole."""
    return _PARTIAL.fullmatch(name) is not None


def _hold(file: BinaryIO) -> None:
    """Mark a staged file as being written, for `clean_partials`. Windows lets nobody delete an open file anyway."""
    if os.name != "nt":
        with contextlib.suppress(OSError):  # a file system without locks: its age protects it
            _lock(file)


def clean_partials(folder: Path, older_than_s: float = 3600.0, below: Path | None = None) -> int:
    """Delete what killed writes left in `folder`, once it is so old that nobody writes it; how many files.

    What a living process still writes stays, however old. From `below` on no link is followed.
    """
    limit, removed = time.time() - older_than_s, 0
    with contextlib.suppress(OSError), opened_folder(folder, below) as opened:
        for name in filter(_PARTIAL.fullmatch, opened.names()):
            with contextlib.suppress(OSError):
                facts = opened.look(name)
                if stat.S_ISREG(facts.st_mode) and facts.st_mtime <= limit and not is_locked(folder / name):
                    opened.remove(name)
                    removed += 1
    return removed


def atomic_write_bytes(path: Path, data: bytes, below: Path | None = None, *, make: bool = True) -> None:
    """Write bytes at hand by `atomic_write`."""
    with atomic_write(path, below, make=make) as file:
        file.write(data)


def atomic_write_json(path: Path, data: Any, below: Path | None = None, *, make: bool = True) -> None:
    """Write JSON by `atomic_write`, readable and stable in order."""
    # Half of a character, as in a note that was cut in an emoji, has no UTF-8; JSON spells it as this very escape.
    text = json.dumps(data, indent=2, ensure_ascii=False) + "\n"
    atomic_write_bytes(path, text.encode("utf-8", "backslashreplace"), below, make=make)


def open_to_write(path: Path, below: Path | None = None) -> int:
    """Returns the descriptor of a regular file that is appended to, made if needed.

    Raises FileError for anything else, without waiting for a pipe.
    """
    with _folder_for(path, below) as folder:
        refusal = FileError(f"{path.name} is a link or no regular file. Move it away, then try again.")
        if folder.is_regular(path.name) is False:  # Windows has no O_NOFOLLOW
            raise refusal
        descriptor = folder.open(path.name, os.O_APPEND | os.O_WRONLY | os.O_CREAT)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise refusal
    return descriptor


def open_append(path: Path) -> BinaryIO:
    """Open for appending, unbuffered, making the file; FileError unless it is a regular file.

    A folder may come from a stranger: what is written there must not go through a link into another file, and no pipe
    may make the writer wait (rule S16). A file with other names too (hard links, as `cp -al` and programs that look for
    copies make them) becomes a copy of its own first; what the others name stays as it is.
    """
    file = os.fdopen(open_to_write(path), "ab", buffering=0)
    if os.fstat(file.fileno()).st_nlink > 1:
        file.close()
        with atomic_write(path) as copy, open_regular(path, follow_links=False) as shared:
            shutil.copyfileobj(shared, copy, 4 << 20)
        file = os.fdopen(open_to_write(path), "ab", buffering=0)
    if os.fstat(file.fileno()).st_nlink > 1:  # somebody makes links faster than they are broken
        file.close()
        raise FileError(
            f"{path.name} is also another file's name (a hard link), which writing would change. Put a "
            "copy in its place, or move it away."
        )
    return file


@contextlib.contextmanager
def locked(path: Path, busy: str, below: Path | None = None) -> Iterator[None]:
    """Hold an exclusive lock on `path` (made if needed); FileError(`busy`) when another process holds it.

    The system releases it with the process, so a crash leaves no stale lock.
    """
    with os.fdopen(open_to_write(path, below), "ab") as file:
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
