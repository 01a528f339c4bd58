"""The sentence of a full disk: which drive, the room that the saves of the run need, and how to make it."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

from ..errors import WanTrainerError
from ..files import DISK_FULL, size_text
from ..run import read_run
from ..train import SaveStore

__all__ = ["disk_sentence"]

_MAKES_ROOM = (
    "What helps most, in this order: delete runs that are no longer needed, in the tab Training runs; delete cached "
    "clips that no unfinished run needs, with “Cached clips …” in that tab; take other files off that drive. Saved "
    "steps are kept; press Run again to resume."
)


def disk_sentence(error: OSError) -> str:
    """Returns an error of the file system in one sentence, without the path of this machine above the folder.

    Of a full disk it says what the last saved step of the run takes, where there is one.
    """
    path = Path(error.filename or "")
    name = f" ({path.name})" if path.name else ""
    if error.errno in DISK_FULL and path.name:
        with contextlib.suppress(OSError):
            return _full_sentence(path)
    return f"{error.strerror or error}{name}. Check the disk and folder."


def _full_sentence(path: Path) -> str:
    drive, folder, free = _drive_of(path.parent), _shown(path.parent), size_text(shutil.disk_usage(path.parent).free)
    run = next((above for above in path.parents[:3] if (above / "saves").is_dir()), None)
    steps = SaveStore(run).steps() if run else []
    if run and steps and (bytes_each := _bytes_of_save(run, steps[-1])):
        need, left = size_text(bytes_each), _saves_left(run, steps)
        if left > 1:
            return (
                f"The drive {drive}, which holds folder {folder}, has too little room: the next save needs about "
                f"{need}, all {left} to come {size_text(left * bytes_each)}, and {free} are free. Make room on it. "
                f"{_MAKES_ROOM}"
            )
        return (
            f"The drive {drive}, which holds folder {folder}, has too little room: the next save needs about {need}, "
            f"and {free} are free. Make room on it. {_MAKES_ROOM}"
        )
    return (
        f"The drive {drive}, which holds folder {folder}, is too full to write {path.name}: {free} are free. Make room "
        f"on it. {_MAKES_ROOM}"
    )


def _shown(folder: Path) -> str:
    """Returns a folder as it is called in ComfyUI: from the folder that holds wan_trainer on, else its name."""
    parts = folder.parts
    if "wan_trainer" not in parts:
        return folder.name
    ours = len(parts) - 1 - parts[::-1].index("wan_trainer")
    return "/".join(part for part in parts[max(ours - 1, 0) :] if part != folder.anchor)


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
