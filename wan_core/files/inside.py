"""Folders of ours without links (rule S16): what was checked is what is opened.

The line: the folder of a run and `_cache` may be links, and so may whatever stands above them, since people keep runs
and models on another drive that way. Below them nothing is written or deleted through a link, as a folder that a
stranger packed brings its own: to keep saved steps elsewhere, link the folder of the run.

Each folder on the way is opened as a folder and not as a link, and a name is looked up inside what is open, so that a
folder exchanged for a link in between leads nowhere. Windows opens no folders: there each real path is compared before
it is used, and a link or junction made in the moment after that is followed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

from .reading import FileError, naming

_NO_FOLDER = (errno.ENOTDIR, errno.ELOOP)
"""what a system says of a link, or of a file, where a folder is asked for"""
_BY_DESCRIPTOR = os.open in os.supports_dir_fd
_HELD = (5, 32, 33, 1224)
"""Windows: access denied, sharing violation, lock violation, mapped into a process"""
_NO_SYNC = tuple(getattr(errno, name) for name in ("EINVAL", "ENOSYS", "ENOTSUP", "EOPNOTSUPP") if hasattr(errno, name))
"""what a file system says that has no such call; a disk that fails says EIO, a full one ENOSPC"""
_NO_SYNC_OF_FOLDERS = (*_NO_SYNC, errno.EBADF, errno.EROFS)
"""the same of a folder that is open for reading, as folders are; databases bear it too"""


class OpenFolder:
    """A folder that is held open. Names are looked up in it, wherever its path leads by now."""

    def __init__(self, path: Path, descriptor: int | None) -> None:
        self.path, self._descriptor = path, descriptor

    def look(self, name: str) -> os.stat_result:
        """Returns the facts of a name itself, never of what it leads to. Raises OSError where there is none."""
        with naming(self.path / name):
            return os.stat(self._of(name), dir_fd=self._descriptor, follow_symlinks=False)

    def is_regular(self, name: str) -> bool | None:
        """Returns whether it is a regular file; None where there is nothing of that name."""
        try:
            return stat.S_ISREG(self.look(name).st_mode)
        except FileNotFoundError:
            return None

    def open(self, name: str, flags: int) -> int:
        """Returns the descriptor of what has the name, which is no link. Never waits for a pipe."""
        for more in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"):
            flags |= getattr(os, more, 0)
        with naming(self.path / name):
            return os.open(self._of(name), flags, 0o666, dir_fd=self._descriptor)

    def make(self, name: str) -> None:
        with naming(self.path / name):
            os.mkdir(self._of(name), dir_fd=self._descriptor)

    def remove(self, name: str) -> None:
        os.unlink(self._of(name), dir_fd=self._descriptor)

    def remove_folder(self, name: str) -> None:
        if stat.S_ISDIR(self.look(name).st_mode):  # Windows would remove a link to one
            os.rmdir(self._of(name), dir_fd=self._descriptor)

    def rename(self, name: str, folder: OpenFolder, target: str, attempts: int = 10) -> None:
        """Replaces what `target` is in `folder`. On Windows a reader, or a virus scanner, makes it fail for a
        moment.
        """
        source, other = self._of(name), folder._of(target)
        for attempt in range(attempts):
            try:
                os.replace(source, other, src_dir_fd=self._descriptor, dst_dir_fd=folder._descriptor)
                return
            except OSError as error:
                held = isinstance(error, PermissionError) or getattr(error, "winerror", None) in _HELD
                if not held or attempt == attempts - 1:
                    raise
                time.sleep(0.05 * (attempt + 1))

    def names(self) -> list[str]:
        return os.listdir(self.path if self._descriptor is None else self._descriptor)

    def sync(self) -> None:
        """Makes renames inside it durable; nothing where folders cannot be opened (Windows)."""
        if self._descriptor is not None:
            _sync(self._descriptor, _NO_SYNC_OF_FOLDERS)

    def _of(self, name: str) -> str:
        return name if self._descriptor is not None else os.path.join(self.path, name)


def sync_file(file: int) -> None:
    """Makes what was written to an open file durable.

    A file system that cannot do so at all is borne: what a power cut tears there is found by its checksum.
    """
    _sync(file, _NO_SYNC)


def fsync_folder(folder: Path) -> None:
    """Make renames inside `folder` durable; a no-op where folders cannot be opened (Windows)."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        _sync(descriptor, _NO_SYNC_OF_FOLDERS)
    finally:
        os.close(descriptor)


def _sync(descriptor: int, borne: tuple[int, ...]) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in borne:
            raise


@contextlib.contextmanager
def opened_folder(folder: Path, below: Path | None = None, *, make: bool = False) -> Iterator[OpenFolder]:
    """The folder, held open; below `below`, by default the folder itself, no link is followed.

    `make`: what is missing of it is made. OSError where it is missing, or anything on the way is a link or no folder;
    it names the folder.
    """
    root = folder if below is None else below
    parts = folder.relative_to(root).parts
    if ".." in parts:
        raise FileError(f"{folder.name} leads outside its folder. Use a name inside it.")
    if make:
        root.mkdir(parents=True, exist_ok=True)
    if not _BY_DESCRIPTOR:
        yield OpenFolder(_real_path(root, parts, make), None)
        return
    opened: list[int] = []
    place = root
    try:
        try:
            opened.append(os.open(root, _flags()))
            for part in parts:
                place /= part
                opened.append(_next_folder(part, opened[-1], make))
        except OSError as error:
            error.filename = os.fspath(place)
            raise
        yield OpenFolder(folder, opened[-1])
    finally:
        for descriptor in opened:
            with contextlib.suppress(OSError):  # nothing was written by it
                os.close(descriptor)


def _flags() -> int:
    return os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)


def _next_folder(name: str, within: int, make: bool) -> int:
    if make:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, dir_fd=within)
    return os.open(name, _flags() | getattr(os, "O_NOFOLLOW", 0), dir_fd=within)


def _real_path(root: Path, parts: tuple[str, ...], make: bool) -> Path:
    """Returns the path of a folder that cannot be opened, of which nothing below `root` is a link now."""
    place = Path(os.path.realpath(root))
    for part in (os.curdir, *parts):
        place /= part
        if make:
            with contextlib.suppress(FileExistsError):
                place.mkdir()
        if not os.path.lexists(place):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(place))
        if Path(os.path.realpath(place)) != place or not place.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), os.fspath(place))
    return place


def is_held(error: BaseException, path: Path) -> bool:
    """Returns whether `path` was refused for a program that holds it open, or a file in it: whoever asks may change it,
    and its folder. Windows says of both that access is denied.
    """
    refused = isinstance(error, PermissionError) or getattr(error, "winerror", None) in _HELD
    return refused and all(os.access(one, os.W_OK) for one in (path, path.parent))


def own_folder(parent: Path, name: str) -> Path:
    """The folder `name` of `parent`, made if needed; FileError when a link or another file has that name (rule S16)."""
    try:
        with opened_folder(parent / name, parent, make=True):
            return parent / name
    except OSError as error:
        if error.errno not in _NO_FOLDER:
            raise
        raise _no_own_folder(parent, name) from error


def _no_own_folder(parent: Path, name: str) -> FileError:
    """Returns the refusal of what should be a folder of ours."""
    return FileError(
        f"{parent.name}/{name} is a link or no folder. Move it away: what is saved would not lie in {parent.name}."
    )


def make_folder(folder: Path, below: Path) -> None:
    """Make a folder that is not there yet, through no link from `below` on."""
    with opened_folder(folder.parent, below) as parent:
        parent.make(folder.name)


def open_new(path: Path, below: Path) -> BinaryIO:
    """A file that is not there yet, to be written, through no link from `below` on."""
    with opened_folder(path.parent, below) as folder:
        return os.fdopen(folder.open(path.name, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb")


def open_inside(path: Path, below: Path) -> BinaryIO:
    """A file, for reading. FileError when it is no regular one, OSError when it is missing or a link is on the way from
    `below` on.
    """
    with opened_folder(path.parent, below) as folder:
        regular = folder.is_regular(path.name) is not False  # asked first: opening a device may do something
        descriptor = folder.open(path.name, os.O_RDONLY) if regular else -1
    if regular and stat.S_ISREG(os.fstat(descriptor).st_mode):
        return os.fdopen(descriptor, "rb")
    if regular:
        os.close(descriptor)
    raise FileError(f"{path.name} is not a regular file. Put the file itself there.")


@contextlib.contextmanager
def folder_for(path: Path, below: Path | None, make: bool = True) -> Iterator[OpenFolder]:
    """The folder that a file is written into. Raises FileError where it cannot be one."""
    with contextlib.ExitStack() as opened:
        try:
            folder = opened.enter_context(opened_folder(path.parent, below, make=make and below is not None))
        except OSError as error:
            if below is not None and error.errno in _NO_FOLDER:
                raise _no_own_folder(below, path.parent.relative_to(below).as_posix()) from error
            if error.errno not in (*_NO_FOLDER, errno.ENOENT) or (make and below is not None):
                raise
            missing = next((p for p in (*reversed(path.parent.parents), path.parent) if not p.is_dir()), path.parent)
            problem = "is not a folder" if os.path.lexists(missing) else "does not exist"
            raise FileError(
                f"Folder {missing} {problem}, so {path.name} cannot be written. Make it, or choose another."
            ) from error
        yield folder


def open_to_append(path: Path, below: Path | None = None) -> BinaryIO:
    """Open a regular file, made if needed, to be appended to at once, without a buffer.

    Raises FileError for anything else, without waiting for a pipe.
    """
    with folder_for(path, below) as folder:
        refusal = FileError(f"{path.name} is a link or no regular file. Move it away, then try again.")
        if folder.is_regular(path.name) is False:  # Windows has no O_NOFOLLOW
            raise refusal
        descriptor = folder.open(path.name, os.O_APPEND | os.O_WRONLY | os.O_CREAT)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise refusal
    with naming(path):
        return cast("BinaryIO", os.fdopen(descriptor, "ab", buffering=0))


def remove_file(path: Path, below: Path) -> bool:
    """Remove one regular file, through no link from `below` on; False when it is not there, is none, or is held."""
    try:
        with opened_folder(path.parent, below) as folder:
            if not folder.is_regular(path.name):
                return False
            folder.remove(path.name)
            return True
    except OSError:
        return False


def freed_by(path: Path, below: Path) -> int:
    """Returns the bytes that `remove_file` would free: none where the file has another name elsewhere."""
    with contextlib.suppress(OSError), opened_folder(path.parent, below) as folder:
        seen = folder.look(path.name)
        if stat.S_ISREG(seen.st_mode) and seen.st_nlink == 1:
            return seen.st_size
    return 0


def remove_empty(path: Path, below: Path) -> None:
    """Remove a folder if nothing is in it, through no link from `below` on."""
    with contextlib.suppress(OSError), opened_folder(path.parent, below) as folder:
        folder.remove_folder(path.name)


def replace_patiently(source: Path, target: Path, below: Path | None = None) -> None:
    """Rename a file or folder over another, through no link from `below` on."""
    with (
        opened_folder(source.parent, below) as folder,
        opened_folder(target.parent, below) as other,
        naming(target),
    ):
        folder.rename(source.name, other, target.name)
