"""Writing, safely: commits whole or absent.

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

from .inside import folder_for, open_to_append, opened_folder, sync_file
from .locks import is_written, mark_as_written
from .reading import FileError, open_regular

DISK_FULL = tuple(getattr(errno, name) for name in ("ENOSPC", "EDQUOT") if hasattr(errno, name))
"""no room, or none for this account"""

_PARTIAL = re.compile(r"\..+\.(?:\d+|[0-9a-f]{16})\.partial")
"""what a killed write leaves; earlier versions put the process id into the name"""


@contextlib.contextmanager
def atomic_write(path: Path, below: Path | None = None, *, make: bool = True) -> Iterator[BinaryIO]:
    """Write a file that appears whole under `path`, or not at all; mode follows the umask.

    `below` is the folder that it lies in: from there on no link is followed, and folders are made, if `make` says so.
    Without one the file's own folder must be there, and its path may have links. The staged name ends in '.partial', an
    extension no loader lists. Refuses to replace a link, folder or device. An OSError names `path`.
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
            if isinstance(error, OSError) and error.errno is not None and _is_ours(error.filename, staged):
                error.filename, error.filename2 = os.fspath(path), None  # a failed write does not say what it wrote
            raise


def _is_ours(name: object, staged: Path) -> bool:
    return name is None or name in (staged.name, os.fspath(staged))


def new_partial(path: Path) -> Path:
    """Returns a name beside `path` for what is not yet whole; nobody else has it, in whatever container or machine."""
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.partial")


def is_partial(name: str) -> bool:
    """Returns whether a file is called like what is not yet whole."""
    return _PARTIAL.fullmatch(name) is not None


def clean_partials(folder: Path, older_than_s: float = 3600.0, below: Path | None = None) -> int:
    """Delete what killed writes left in `folder`, once it is so old that nobody writes it; how many files.

    What a living process still writes stays, however old. From `below` on no link is followed.
    """
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
    """Write bytes at hand by `atomic_write`."""
    with atomic_write(path, below, make=make) as file:
        file.write(data)


def atomic_write_json(path: Path, data: Any, below: Path | None = None, *, make: bool = True) -> None:
    """Write JSON by `atomic_write`, readable and stable in order."""
    # Half of a character, as in a note that was cut in an emoji, has no UTF-8; JSON spells it as this very escape.
    text = json.dumps(data, indent=2, ensure_ascii=False) + "\n"
    atomic_write_bytes(path, text.encode("utf-8", "backslashreplace"), below, make=make)


def open_append(path: Path) -> BinaryIO:
    """Open for appending, unbuffered, making the file; FileError unless it is a regular file.

    A folder may come from a stranger: what is written there must not go through a link into another file, and no pipe
    may make the writer wait (rule S16). A file with other names too (hard links, as `cp -al` and programs that look for
    copies make them) becomes a copy of its own first; what the others name stays as it is.
    """
    file = open_to_append(path)
    if os.fstat(file.fileno()).st_nlink > 1:
        file.close()
        with atomic_write(path) as copy, open_regular(path, follow_links=False) as shared:
            shutil.copyfileobj(shared, copy, 4 << 20)
        file = open_to_append(path)
    if os.fstat(file.fileno()).st_nlink > 1:  # somebody makes links faster than they are broken
        file.close()
        raise FileError(
            f"{path.name} is also another file's name (a hard link), which writing would change. Put a "
            "copy in its place, or move it away."
        )
    return file
