"""Reads files: confined paths, regular files only, JSON, digests, file marks."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import WanTrainerError

_COMPLETE_BYTES = 64 << 20
_WINDOWS, _WINDOW_BYTES = 64, 64 << 10


class FileError(WanTrainerError):
    """A refused path, or a file of the wrong kind or content."""


def confine(root: Path, relative: str, what: str) -> Path:
    """Returns the real path of `relative` under `root`; FileError if links or '..' lead outside (rules S1, S2)."""
    base = Path(os.path.realpath(root))
    path = Path(os.path.realpath(base / relative))
    if path != base and base not in path.parents:
        raise FileError(
            f"{what} {relative[:200]!r} leads outside its folder. Use a name inside it, without '..' or links."
        )
    return path


def lies_under(path: Path | str, roots: Iterable[Path | str]) -> bool:
    """Returns whether the real path is one of `roots`, or is below a root (rules S2, S16)."""
    real = Path(os.path.realpath(path))
    bases = [Path(os.path.realpath(root)) for root in roots]
    return any(real == base or base in real.parents for base in bases)


def open_regular(path: Path | str, *, follow_links: bool = True) -> BinaryIO:
    """Open a regular file for reading; FileError for a pipe, device, folder or URL (rules S3, S16)."""
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
    if not follow_links:
        flags |= getattr(os, "O_NOFOLLOW", 0)
    try:
        # With O_NONBLOCK, because opening a pipe without a writer would block.
        descriptor = os.open(path, flags)
    except OSError as error:
        fix = "Put a readable file there."
        if isinstance(error, FileNotFoundError):
            fix = "Put it there, or choose another."
        if isinstance(error, PermissionError):
            fix = "Give the account that runs this the right to read it."
        raise FileError(f"{os.path.basename(path)} cannot be opened: {error.strerror}. {fix}") from error
    with naming(path):
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise FileError(f"{os.path.basename(path)} is not a regular file. Put the file itself there.")
        return os.fdopen(descriptor, "rb")


@contextlib.contextmanager
def naming(path: Path | str) -> Iterator[None]:
    """Adds the file name to an OSError of a system call that is relative to a descriptor."""
    try:
        yield
    except OSError as error:
        error.filename, error.filename2 = os.fspath(path), None
        raise


def read_json(path: Path, *, limit_bytes: int = 64 << 20) -> Any:
    """Returns the JSON of a regular file; FileError if it is missing, too large or not JSON."""
    with naming(path), open_regular(path) as file:
        data = file.read(limit_bytes + 1)
    if len(data) > limit_bytes:
        raise FileError(f"{path.name} is larger than {limit_bytes >> 20} MiB: no file of Wan Trainer is. Delete it.")
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FileError(f"{path.name} is not valid JSON ({error}). Restore it or delete it.") from error


def digest_file(path: Path, should_stop: Callable[[], bool] | None = None) -> str:
    """Returns the SHA-256 of a file, in hex; FileError once `should_stop` returns True."""
    digest = hashlib.sha256()
    with naming(path), open_regular(path) as file:
        while chunk := file.read(4 << 20):
            digest.update(chunk)
            if should_stop is not None and should_stop():
                raise FileError(f"Reading {path.name} was stopped.")
    return digest.hexdigest()


def sampled_digest(path: Path) -> str:
    """Returns a SHA-256 of the size, the first MiB and 64 evenly spaced windows of a file, in milliseconds for 28 GB.

    Files up to 64 MiB are hashed completely. In a larger file, a change between the windows is missed; fine-tuning
    changes all of them.
    """
    digest = hashlib.sha256()
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size <= _COMPLETE_BYTES:
            return digest_file(path)
        digest.update(str(size).encode())
        digest.update(file.read(1 << 20))
        for index in range(_WINDOWS):  # the last window ends at the end of the file
            file.seek((size - _WINDOW_BYTES) * index // (_WINDOWS - 1))
            digest.update(file.read(_WINDOW_BYTES))
    return digest.hexdigest()


def shown_folder(folder: Path) -> str:
    """Returns the path of a folder from the parent of `wan_trainer` on, as ComfyUI shows it; the folder's name for
    other folders."""
    parts = folder.parts
    if "wan_trainer" not in parts:
        return folder.name
    ours = len(parts) - 1 - parts[::-1].index("wan_trainer")
    return "/".join(part for part in parts[max(ours - 1, 0) :] if part != folder.anchor)


def size_text(size: int) -> str:
    """Returns a size as text: 1.5 GiB, 0.4 MiB."""
    return f"{size / 2**30:.1f} GiB" if size >= 1 << 30 else f"{size / 2**20:.1f} MiB"


def file_mark(path: Path | str) -> list[int]:
    """Returns [size, mtime_ns, inode], and ctime_ns where the system has it.

    ctime reveals an edit after which mtime was restored, but a rename or a new hard link changes it too.
    """
    info = os.stat(path)
    # On Windows st_ctime is the time of creation.
    return [info.st_size, info.st_mtime_ns, info.st_ino, *([info.st_ctime_ns] if os.name == "posix" else [])]


def is_touched(before: Sequence[int], now: Sequence[int]) -> bool:
    """Returns whether two marks differ in ctime alone, so that only the content shows whether the file was edited."""
    return list(before) != list(now) and list(before[:3]) == list(now[:3])
