"""The sentence of a disk that takes nothing: which drive, the room that the saves of the run need, and what to do."""

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
    "take other files off that drive",
)

_LACKS = "The file system there lacks what is needed: choose an output folder on another drive."
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
    """Returns an error of the file system in one sentence, without the path of this machine above the folder.

    Of a full disk it says what the last saved step of the run takes, where there is one.
    """
    path = Path(error.filename or "")
    name = f" ({path.name})" if path.name else ""
    if error.errno in DISK_FULL and path.name:
        with contextlib.suppress(OSError):
            return _full_sentence(path)
    if path.name and is_held(error, path):
        return (
            f"{path.name} in folder {shown_folder(path.parent)} is held open by another program, such as a viewer, a "
            "virus scanner or one that syncs folders. Close it there, then try again."
        )
    if path.name and (helps := _HELPS.get(error.errno or 0)):
        return f"{path.name} in folder {shown_folder(path.parent)} cannot be used: {error.strerror}. {helps}"
    return f"{error.strerror or error}{name}. Check the disk and folder."


def _full_sentence(path: Path) -> str:
    there = next(folder for folder in path.parents if folder.is_dir())  # that of a run that could not begin is gone
    free = size_text(shutil.disk_usage(there).free)
    where = {"drive": _drive_of(there), "folder": shown_folder(path.parent), "free": free}
    run = next((above for above in path.parents[:3] if (above / "saves").is_dir()), None)
    steps = SaveStore(run).steps() if run else []
    if run and steps and (bytes_each := _bytes_of_save(run, steps[-1])):
        need, left = size_text(bytes_each), _saves_left(run, steps)
        if left > 1:
            return _make_room(
                "The drive {drive}, which holds folder {folder}, has too little room: the next save needs about "
                "{need}, all {left} to come {all}, and {free} are free. Make room on it.",
                **{"all": size_text(left * bytes_each), "left": left, "need": need, **where},
            )
        return _make_room(
            "The drive {drive}, which holds folder {folder}, has too little room: the next save needs about {need}, "
            "and {free} are free. Make room on it.",
            **{"need": need, **where},
        )
    return _make_room(
        "The drive {drive}, which holds folder {folder}, is too full to write {file}: {free} are free. Make room on "
        "it.",
        **{"file": path.name, **where},
    )


def _make_room(template: str, **values: object) -> str:
    return failure(filled(template, **values), helps=_MAKES_ROOM, closing=RESUME)


def _drive_of(folder: Path) -> str:
    """Returns where the drive of a folder is mounted, as C:\\ or /: what there is of its path beside the folder."""
    folder = folder.resolve()
    return str(next((place for place in (folder, *folder.parents) if os.path.ismount(place)), folder.anchor))


def _bytes_of_save(run: Path, step: int) -> int:
    return sum(file.lstat().st_size for file in (run / "saves" / f"step-{step:06d}").iterdir())


def _saves_left(run: Path, saved: list[int]) -> int:
    """Returns how many more saved steps will lie beside those that are there; 0 where the run does not say."""
    try:
        train = read_run(run).train
    except WanTrainerError:
        return 0
    left = -(-train.steps // train.save_every_n_steps) - saved[-1] // train.save_every_n_steps
    if not train.keep_last_saves:
        return left
    return min(left, max(1, train.keep_last_saves + 1 - len(saved)))  # the best one stays beside the last
