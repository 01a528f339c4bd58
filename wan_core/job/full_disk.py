"""File system errors as sentences: the drive, the space that the run's saves need, and what to do."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from pathlib import Path

from ..errors import RESUME, WanTrainerError, failure
from ..files import DISK_FULL, is_held, shown_folder, size_text
from ..train import SaveStore
from ..words import filled
from .config import read_run

_MAKES_ROOM = (
    "delete runs that are no longer needed, in the tab Training runs",
    "delete cached clips that no unfinished run needs, with “Cached clips …” in that tab",
    "move other files off that drive",
)

_LACKS = "This file system lacks a needed feature: choose an output folder on another drive."
_HELPS = {
    errno.EROFS: "Its drive is read-only: make it writable, or choose an output folder on another one.",
    errno.EACCES: "Give the account that runs this the right to write there.",
    errno.EPERM: "Give the account that runs this the right to write there.",
    errno.EIO: "The drive itself failed: check its health and its cable, and copy what matters to another one.",
    errno.EMFILE: "This program has too many files open: start it again, or allow it more (ulimit -n).",
    errno.ENFILE: "The system has too many files open: close other programs.",
    **{
        getattr(errno, name): _LACKS
        for name in ("EINVAL", "ENODEV", "ENOSYS", "ENOTSUP", "EOPNOTSUPP", "EXDEV")
        if hasattr(errno, name)
    },
}


def disk_sentence(error: OSError) -> str:
    """Returns a file system error as a sentence, without the path above its folder."""
    path = Path(error.filename or "")
    name = f" ({path.name})" if path.name else ""
    if error.errno in DISK_FULL and path.name:
        with contextlib.suppress(OSError):
            return _full_sentence(path)
    if path.name and is_held(error, path):
        return (
            f"{path.name} in folder {shown_folder(path.parent)} is open in another program, such as a viewer, a "
            "virus scanner or one that syncs folders. Close it there, then try again."
        )
    if path.name and (helps := _HELPS.get(error.errno or 0)):
        return f"{path.name} in folder {shown_folder(path.parent)} cannot be used: {error.strerror}. {helps}"
    return f"{error.strerror or error}{name}. Check the disk and folder."


def _full_sentence(path: Path) -> str:
    existing = next(folder for folder in path.parents if folder.is_dir())  # a run that could not start has no folder
    free, resolved = size_text(shutil.disk_usage(existing).free), existing.resolve()
    drive = next((place for place in (resolved, *resolved.parents) if os.path.ismount(place)), resolved.anchor)
    where = {"drive": str(drive), "folder": shown_folder(path.parent), "free": free}
    run = next((above for above in path.parents[:3] if (above / "saves").is_dir()), None)
    steps = SaveStore(run).steps() if run else []
    newest = run / "saves" / f"step-{steps[-1]:06d}" if run and steps else None
    if run and newest and (bytes_each := sum(file.lstat().st_size for file in newest.iterdir())):
        left = _saves_left(run, steps)
        where |= {"need": size_text(bytes_each), "left": str(left), "all": size_text(left * bytes_each)}
        template = (
            "The drive {drive}, which holds folder {folder}, has too little free space: the next save needs about "
            "{need}, and {free} are free. Free disk space on it."
        )
        if left > 1:
            template = (
                "The drive {drive}, which holds folder {folder}, has too little free space: the next save needs about "
                "{need}, all {left} to come {all}, and {free} are free. Free disk space on it."
            )
    else:
        where["file"] = path.name
        template = (
            "The drive {drive}, which holds folder {folder}, is too full to write {file}: {free} are free. Free disk "
            "space on it."
        )
    return failure(filled(template, **where), helps=_MAKES_ROOM, closing=RESUME)


def _saves_left(run: Path, saved: list[int]) -> int:
    """Returns how many saved steps the run will add to the existing ones; 0 if its run.json is unreadable."""
    try:
        train = read_run(run).train
    except WanTrainerError:
        return 0
    left = -(-train.steps // train.save_every_n_steps) - saved[-1] // train.save_every_n_steps
    if not train.keep_last_saves:
        return left
    return min(left, max(1, train.keep_last_saves + 1 - len(saved)))  # + 1, because the best step is kept too
