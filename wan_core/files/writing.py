"""Atomic writes: a file is either complete or absent after a crash.

A write is staged next to the target, synced, and renamed over it, inside the opened folder (`inside.py` says which
links are followed). safetensors' `save_file` does not sync, and some versions leave incomplete files.
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

from .inside import folder_for, open_to_append, opened_folder, sync_file
from .locks import is_written, mark_as_written
from .reading import FileError, open_regular

DISK_FULL = tuple(getattr(errno, name) for name in ("ENOSPC", "EDQUOT") if hasattr(errno, name))
"""errno of a full disk or an exceeded quota"""

_PARTIAL = re.compile(r"\..+\.(?:\d+|[0-9a-f]{16})\.partial")
"""name of a staged file; names of older versions contain the process id"""


@contextlib.contextmanager
def atomic_write(path: Path, below: Path | None = None, *, make: bool = True) -> Iterator[BinaryIO]:
    """Write a file atomically, with a mode by the umask. FileError instead of replacing a link, folder or device.

    `below`: a folder below which no link is followed, and with `make` missing folders are created. Without `below`, the
    folder of the file must exist, and its path may have links. No loader lists staged files (`*.partial`). An OSError
    names `path`.
    """
    staged = new_partial(path)
    with folder_for(path, below, make) as folder:
        if folder.is_regular(path.name) is False:
            raise FileError(f"{path.name} exists and is not a regular file. Move it away, then try again.")
        try:
            with open(staged, "xb", opener=lambda _path, flags: folder.open(staged.name, flags)) as file:
                mark_as_written(file)
                yield file
                file.flush()
                sync_file(file.fileno())
            folder.rename(staged.name, folder, path.name)
            folder.sync()
        except BaseException as error:
            with contextlib.suppress(OSError):
                folder.remove(staged.name)
            ours = (None, staged.name, os.fspath(staged))
            if isinstance(error, OSError) and error.errno is not None and error.filename in ours:
                # The error has no file name, or the staged one, which the user does not know.
                error.filename, error.filename2 = os.fspath(path), None
            raise


def new_partial(path: Path) -> Path:
    """Returns an unused staging name next to `path`, unique across containers and machines."""
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.partial")


def is_partial(name: str) -> bool:
    """Returns whether a file has a staging name."""
    return _PARTIAL.fullmatch(name) is not None


def clean_partials(folder: Path, older_than_s: float = 3600.0, below: Path | None = None) -> int:
    """Delete staged files of ended processes; returns their number. No link is followed below `below`."""
    limit, removed = time.time() - older_than_s, 0
    with contextlib.suppress(OSError), opened_folder(folder, below) as opened:
        for name in filter(_PARTIAL.fullmatch, opened.names()):
            with contextlib.suppress(OSError):
                facts = opened.look(name)
                if stat.S_ISREG(facts.st_mode) and facts.st_mtime <= limit and not is_written(folder / name):
                    opened.remove(name)
                    removed += 1
    return removed


def atomic_write_bytes(path: Path, data: bytes, below: Path | None = None, *, make: bool = True) -> None:
    """Write bytes with `atomic_write`."""
    with atomic_write(path, below, make=make) as file:
        file.write(data)


def atomic_write_json(path: Path, data: Any, below: Path | None = None, *, make: bool = True) -> None:
    """Write indented JSON with `atomic_write`."""
    # UTF-8 has no lone surrogates (a text cut inside an emoji); `backslashreplace` writes their JSON escape.
    text = json.dumps(data, indent=2, ensure_ascii=False) + "\n"
    atomic_write_bytes(path, text.encode("utf-8", "backslashreplace"), below, make=make)


def open_append(path: Path) -> BinaryIO:
    """Open a file for appending, unbuffered; creates it if needed. FileError unless it is a regular file.

    Links and pipes are refused, because the folder may be foreign (rule S16). A file with several hard links (`cp -al`,
    deduplication) is replaced by a copy first, so that the other names keep their content.
    """
    file = open_to_append(path)
    if os.fstat(file.fileno()).st_nlink > 1:
        file.close()
        with atomic_write(path) as copy, open_regular(path, follow_links=False) as shared:
            shutil.copyfileobj(shared, copy, 4 << 20)
        file = open_to_append(path)
    if os.fstat(file.fileno()).st_nlink > 1:  # another process has replaced it by a file with links
        file.close()
        raise FileError(
            f"{path.name} is also another file's name (a hard link), which writing would change. Put a "
            "copy in its place, or move it away."
        )
    return file
