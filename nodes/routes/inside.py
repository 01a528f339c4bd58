"""Folders and files of a run without following a link (rule S16): what was checked is what is opened.

Each folder on the way is opened as a folder and not as a link, and the next name is looked up inside what was opened,
so that a folder exchanged for a link in between leads nowhere.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

__all__ = ["Parts", "freed_by", "open_file", "remove_empty", "remove_file"]

Parts = tuple[str, ...]
"""names below a root, none of them empty, a dot or more than one"""


def open_file(root: Path, parts: Parts) -> BinaryIO:
    """A regular file below `root`, for reading; OSError when it is none, or a link is on the way."""
    flags = os.O_RDONLY
    for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"):
        flags |= getattr(os, name, 0)
    with opened_folder(root, parts[:-1]) as folder:
        if not stat.S_ISREG(_look(folder, parts[-1]).st_mode):
            raise FileNotFoundError(parts[-1])
        if isinstance(folder, int):
            descriptor = os.open(parts[-1], flags, dir_fd=folder)
        else:
            descriptor = os.open(folder / parts[-1], flags)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileNotFoundError(parts[-1])
    return os.fdopen(descriptor, "rb")


def remove_file(root: Path, parts: Parts) -> bool:
    """Remove one regular file below `root`; False when it is not there, or is none."""
    try:
        with opened_folder(root, parts[:-1]) as folder:
            if not stat.S_ISREG(_look(folder, parts[-1]).st_mode):
                return False
            if isinstance(folder, int):
                os.unlink(parts[-1], dir_fd=folder)
            else:
                os.unlink(folder / parts[-1])
            return True
    except OSError:
        return False


def freed_by(root: Path, parts: Parts) -> int:
    """Returns the bytes that removing one regular file below `root` frees: none where it has another name elsewhere."""
    with contextlib.suppress(OSError), opened_folder(root, parts[:-1]) as folder:
        seen = _look(folder, parts[-1])
        if stat.S_ISREG(seen.st_mode) and seen.st_nlink == 1:
            return seen.st_size
    return 0


def remove_empty(root: Path, parts: Parts) -> None:
    """Remove a folder below `root` if nothing is in it."""
    with contextlib.suppress(OSError), opened_folder(root, parts[:-1]) as folder:
        if isinstance(folder, int):
            os.rmdir(parts[-1], dir_fd=folder)
        elif stat.S_ISDIR(_look(folder, parts[-1]).st_mode):
            os.rmdir(folder / parts[-1])


@contextlib.contextmanager
def opened_folder(root: Path, parts: Parts) -> Iterator[int | Path]:
    """The folder `root/parts`: an open descriptor, or on Windows, which has none for folders, its path.

    OSError when anything below `root` is a link or no folder.
    """
    if os.open not in os.supports_dir_fd:
        place = Path(os.path.realpath(root)).joinpath(*parts)
        if Path(os.path.realpath(place)) != place:
            raise NotADirectoryError(str(place))
        yield place
        return
    flags = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
    opened = [os.open(root, flags)]
    try:
        for part in parts:
            opened.append(os.open(part, flags | getattr(os, "O_NOFOLLOW", 0), dir_fd=opened[-1]))
        yield opened[-1]
    finally:
        for descriptor in opened:
            os.close(descriptor)


def _look(folder: int | Path, name: str) -> os.stat_result:
    if isinstance(folder, int):
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    return os.lstat(folder / name)
