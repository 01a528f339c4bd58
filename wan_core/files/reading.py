"""Confined paths, regular files only; and what is read of them: JSON, digests, identity."""

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

_WHOLE_BYTES = 64 << 20
_OPENING_FIXES: tuple[tuple[type[OSError], str], ...] = (
    (FileNotFoundError, "Put it there, or choose another."),
    (PermissionError, "Give the account that runs this the right to read it."),
)


class FileError(WanTrainerError):
    """A path that may not be used, or a file that is not what it must be."""


def confine(root: Path, relative: str, what: str) -> Path:
    """The real path of `relative` under `root`; FileError when links or '..' would lead outside (rules S1, S2)."""
    base = Path(os.path.realpath(root))
    path = Path(os.path.realpath(base / relative))
    if path != base and base not in path.parents:
        raise FileError(
            f"{what} {relative[:200]!r} leads outside its folder. Use a name inside it, without '..' or links."
        )
    return path


def lies_under(path: Path | str, roots: Iterable[Path | str]) -> bool:
    """Returns whether `path` is one of `roots` or below one, judged by where links lead (rules S2, S16)."""
    real = Path(os.path.realpath(path))
    bases = [Path(os.path.realpath(root)) for root in roots]
    return any(real == base or base in real.parents for base in bases)


def open_regular(path: Path | str, *, follow_links: bool = True) -> BinaryIO:
    """Open for reading only if it is a regular file: no pipe, device or folder, and never a URL (rules S3, S16)."""
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
    if not follow_links:
        flags |= getattr(os, "O_NOFOLLOW", 0)
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        fix = next((fix for kind, fix in _OPENING_FIXES if isinstance(error, kind)), "Put a readable file there.")
        raise FileError(f"{os.path.basename(path)} cannot be opened: {error.strerror}. {fix}") from error
    with naming(path):
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise FileError(f"{os.path.basename(path)} is not a regular file. Put the file itself there.")
        return os.fdopen(descriptor, "rb")


@contextlib.contextmanager
def naming(path: Path | str) -> Iterator[None]:
    """An OSError inside says which file it is of; the system does not, where it is asked by a descriptor."""
    try:
        yield
    except OSError as error:
        error.filename, error.filename2 = os.fspath(path), None
        raise


def read_json(path: Path, *, limit_bytes: int = 64 << 20) -> Any:
    """Returns the parsed JSON of a regular file; FileError when it is missing, too large or not JSON."""
    with naming(path), open_regular(path) as file:
        data = file.read(limit_bytes + 1)
    if len(data) > limit_bytes:
        raise FileError(f"{path.name} is larger than {limit_bytes >> 20} MiB; it is not a file of ours.")
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FileError(f"{path.name} is not valid JSON ({error}). Restore it or delete it.") from error


def digest_file(path: Path, should_stop: Callable[[], bool] | None = None) -> str:
    """Returns the SHA-256 of all bytes, hex, read 4 MiB at a time; FileError when `should_stop` answers True."""
    digest = hashlib.sha256()
    with naming(path), open_regular(path) as file:
        while chunk := file.read(4 << 20):
            digest.update(chunk)
            if should_stop is not None and should_stop():
                raise FileError(f"Reading {path.name} was stopped.")
    return digest.hexdigest()


def sampled_digest(path: Path, *, windows: int = 64, window_bytes: int = 64 << 10) -> str:
    """SHA-256 over size, the first MiB and `windows` evenly spaced windows: names a 28 GB file in milliseconds.

    Up to 64 MiB the whole file counts. Above, two files that differ only between the windows are taken for the same; a
    fine-tune changes all of them.
    """
    digest = hashlib.sha256()
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size <= _WHOLE_BYTES:
            return digest_file(path)
        digest.update(str(size).encode())
        digest.update(file.read(1 << 20))
        for index in range(windows):  # the last one ends where the file ends
            file.seek(max(size - window_bytes, 0) * index // max(windows - 1, 1))
            digest.update(file.read(window_bytes))
    return digest.hexdigest()


def shown_folder(folder: Path) -> str:
    """Returns a folder as it is called in ComfyUI, from the one that holds wan_trainer on; else its name."""
    parts = folder.parts
    if "wan_trainer" not in parts:
        return folder.name
    ours = len(parts) - 1 - parts[::-1].index("wan_trainer")
    return "/".join(part for part in parts[max(ours - 1, 0) :] if part != folder.anchor)


def size_text(size: int) -> str:
    """Returns bytes as people read them: 1.5 GiB, 0.4 MiB."""
    return f"{size / 2**30:.1f} GiB" if size >= 1 << 30 else f"{size / 2**20:.1f} MiB"


def file_mark(path: Path | str) -> list[int]:
    """Returns (size, mtime_ns, inode), and where the system keeps one the time of the last change of the inode: an edit
    is then seen also when the modification time was put back. Changes when a file is renamed or linked, too.
    """
    return _mark_of_facts(os.stat(path))


def _mark_of_facts(info: os.stat_result) -> list[int]:
    """Returns the `file_mark` of a file that was looked at."""
    # On Windows st_ctime is the time of creation.
    return [info.st_size, info.st_mtime_ns, info.st_ino, *([info.st_ctime_ns] if os.name == "posix" else [])]


def is_touched(before: Sequence[int], now: Sequence[int]) -> bool:
    """Returns whether two marks differ in the time of the last change alone: of a file that got another right or one
    more name, and of one that was edited and dated back. Only its bytes tell.
    """
    return list(before) != list(now) and list(before[:3]) == list(now[:3])
