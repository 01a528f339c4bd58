"""Opens the pack's own folders so that no link below them is followed (rule S16).

The run folder, `_cache` and all folders above them may be links, since people keep runs on another drive. Below them,
nothing is written or deleted through a link, because an unpacked archive can contain links.

Each folder of a path is opened with O_NOFOLLOW, and names are resolved relative to its descriptor (openat), so
replacing a folder by a link has no effect once it is open. Windows has no directory descriptors: there the real path is
compared before use, and a link that is created between check and use is followed.
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
"""errno of opening a link or a file with O_DIRECTORY"""
_ATTEMPTS = 10
_BY_DESCRIPTOR = os.open in os.supports_dir_fd
_HELD = (5, 32, 33, 1224)
"""Windows errors: access denied, sharing violation, lock violation, mapped into a process"""
_NO_SYNC = tuple(getattr(errno, name) for name in ("EINVAL", "ENOSYS", "ENOTSUP", "EOPNOTSUPP") if hasattr(errno, name))
"""errno values of file systems without fsync; a failing disk gives EIO, a full one ENOSPC"""
_NO_SYNC_OF_FOLDERS = (*_NO_SYNC, errno.EBADF, errno.EROFS)
"""errno of file systems without fsync of a folder opened read-only; databases ignore the same ones"""


class OpenFolder:
    """An open folder. Names are resolved relative to its descriptor, even if the folder is renamed."""

    def __init__(self, path: Path, descriptor: int | None) -> None:
        self.path, self._descriptor = path, descriptor

    def look(self, name: str) -> os.stat_result:
        """Returns the lstat of a name (links are not followed). Raises OSError if it does not exist."""
        with naming(self.path / name):
            return os.stat(self._of(name), dir_fd=self._descriptor, follow_symlinks=False)

    def is_regular(self, name: str) -> bool | None:
        """Returns whether the name is a regular file; None if it does not exist."""
        try:
            return stat.S_ISREG(self.look(name).st_mode)
        except FileNotFoundError:
            return None

    def open(self, name: str, flags: int) -> int:
        """Returns a descriptor. Links are refused; a pipe does not block."""
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
        if stat.S_ISDIR(self.look(name).st_mode):  # checked first, because on Windows rmdir removes a link to a folder
            os.rmdir(self._of(name), dir_fd=self._descriptor)

    def rename(self, name: str, folder: OpenFolder, target: str) -> None:
        """Rename to `target` in `folder`, replacing it; retried while another program holds the file."""
        source, other = self._of(name), folder._of(target)
        # On Windows a reader, such as a virus scanner, makes a rename fail until it closes the file.
        for attempt in range(_ATTEMPTS):
            try:
                os.replace(source, other, src_dir_fd=self._descriptor, dst_dir_fd=folder._descriptor)
                return
            except OSError as error:
                held = isinstance(error, PermissionError) or getattr(error, "winerror", None) in _HELD
                if not held or attempt == _ATTEMPTS - 1:
                    raise
                time.sleep(0.05 * (attempt + 1))

    def names(self) -> list[str]:
        return os.listdir(self.path if self._descriptor is None else self._descriptor)

    def sync(self) -> None:
        """Make renames in the folder durable (fsync); a no-op on Windows."""
        if self._descriptor is not None:
            _sync(self._descriptor, _NO_SYNC_OF_FOLDERS)

    def _of(self, name: str) -> str:
        return name if self._descriptor is not None else os.path.join(self.path, name)


def sync_file(file: int) -> None:
    """Makes the data of an open file durable (fsync). File systems without fsync raise nothing."""
    _sync(file, _NO_SYNC)


def fsync_folder(folder: Path) -> None:
    """Make renames in `folder` durable (fsync); a no-op on Windows."""
    with opened_folder(folder) as opened:
        opened.sync()


def _sync(descriptor: int, ignored: tuple[int, ...]) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in ignored:
            raise


@contextlib.contextmanager
def opened_folder(folder: Path, below: Path | None = None, *, make: bool = False) -> Iterator[OpenFolder]:
    """Yields the open folder; no link is followed below `below` (default: the folder itself).

    `make` creates missing folders. Raises OSError, with the path of the folder that is missing, a link or a file.
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
    place, flags = root, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
    try:
        try:
            opened.append(os.open(root, flags))
            for part in parts:
                place /= part
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, dir_fd=opened[-1])
                opened.append(os.open(part, flags | getattr(os, "O_NOFOLLOW", 0), dir_fd=opened[-1]))
        except OSError as error:
            error.filename = os.fspath(place)
            raise
        yield OpenFolder(folder, opened[-1])
    finally:
        for descriptor in opened:
            with contextlib.suppress(OSError):  # An error of closing a read-only descriptor loses no data.
                os.close(descriptor)


def _real_path(root: Path, parts: tuple[str, ...], make: bool) -> Path:
    """Returns the real path for systems without directory descriptors; raises OSError for a link below `root`."""
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
    """Returns whether `error` means that `path`, or a file in it, is open in another program.

    Windows reports an open file as access denied. If the path and its folder are writable, that is the cause.
    """
    refused = isinstance(error, PermissionError) or getattr(error, "winerror", None) in _HELD
    return refused and all(os.access(one, os.W_OK) for one in (path, path.parent))


def own_folder(parent: Path, name: str) -> Path:
    """Returns the folder `name` of `parent`, created if needed; FileError if it is a link or a file (rule S16)."""
    with folder_for(parent / name / "a file", parent):
        return parent / name


def make_folder(folder: Path, below: Path) -> None:
    """Create a folder; no link is followed below `below`."""
    with opened_folder(folder.parent, below) as parent:
        parent.make(folder.name)


def open_new(path: Path, below: Path) -> BinaryIO:
    """Create a file for writing; no link is followed below `below`."""
    with opened_folder(path.parent, below) as folder:
        return os.fdopen(folder.open(path.name, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb")


def open_inside(path: Path, below: Path) -> BinaryIO:
    """Open a regular file for reading (else FileError); OSError if missing, or for a link below `below`."""
    with opened_folder(path.parent, below) as folder:
        # checked before opening, because opening a device can have effects
        regular = folder.is_regular(path.name) is not False
        descriptor = folder.open(path.name, os.O_RDONLY) if regular else -1
    # Checked again on the descriptor, because the file may have been replaced.
    if regular and stat.S_ISREG(os.fstat(descriptor).st_mode):
        return os.fdopen(descriptor, "rb")
    if regular:
        os.close(descriptor)
    raise FileError(f"{path.name} is not a regular file. Put the file itself there.")


@contextlib.contextmanager
def folder_for(path: Path, below: Path | None, make: bool = True) -> Iterator[OpenFolder]:
    """Yields the open folder of a file to write. Raises FileError if the folder cannot be used."""
    with contextlib.ExitStack() as opened:
        try:
            folder = opened.enter_context(opened_folder(path.parent, below, make=make and below is not None))
        except OSError as error:
            if below is not None and error.errno in _NO_FOLDER:
                name, root = path.parent.relative_to(below).as_posix(), below.name
                why = (
                    f"{root}/{name} is a link or a file. Move it away, because files would be saved outside of {root}."
                )
                raise FileError(why) from error
            if error.errno not in (*_NO_FOLDER, errno.ENOENT) or (make and below is not None):
                raise
            missing = next((p for p in (*reversed(path.parent.parents), path.parent) if not p.is_dir()), path.parent)
            problem = "is not a folder" if os.path.lexists(missing) else "does not exist"
            raise FileError(
                f"Folder {missing} {problem}, so {path.name} cannot be written. Create it, or choose another."
            ) from error
        yield folder


def open_to_append(path: Path, below: Path | None = None) -> BinaryIO:
    """Open a regular file for appending, unbuffered, created if needed. Raises FileError for any other kind of file."""
    with folder_for(path, below) as folder:
        refusal = FileError(f"{path.name} is a link or no regular file. Move it away, then try again.")
        if folder.is_regular(path.name) is False:  # checked, because Windows has no O_NOFOLLOW
            raise refusal
        descriptor = folder.open(path.name, os.O_APPEND | os.O_WRONLY | os.O_CREAT)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise refusal
    with naming(path):
        return cast("BinaryIO", os.fdopen(descriptor, "ab", buffering=0))


def remove_file(path: Path, below: Path) -> bool:
    """Remove a regular file, following no link below `below`; False if it is missing, no regular file, or in use."""
    try:
        with opened_folder(path.parent, below) as folder:
            if not folder.is_regular(path.name):
                return False
            folder.remove(path.name)
            return True
    except OSError:
        return False


def freed_by(path: Path, below: Path) -> int:
    """Returns the bytes that `remove_file` would free: 0 if the file has other hard links."""
    with contextlib.suppress(OSError), opened_folder(path.parent, below) as folder:
        seen = folder.look(path.name)
        if stat.S_ISREG(seen.st_mode) and seen.st_nlink == 1:
            return seen.st_size
    return 0


def remove_empty(path: Path, below: Path) -> None:
    """Remove an empty folder, following no link below `below`."""
    with contextlib.suppress(OSError), opened_folder(path.parent, below) as folder:
        folder.remove_folder(path.name)


def replace_patiently(source: Path, target: Path, below: Path | None = None) -> None:
    """Rename a file or folder over another, following no link below `below`."""
    with (
        opened_folder(source.parent, below) as folder,
        opened_folder(target.parent, below) as other,
        naming(target),
    ):
        folder.rename(source.name, other, target.name)
