"""Deleting a run: the files its own manifests list, one by one, and folders that are empty then (rule S16).

A file of the user's own in the folder stays, and the folder with it. No link is followed: each folder on the way is
opened as a folder and not as a link, and files are removed by name inside what was opened, so that a folder exchanged
for a link in between leads nowhere.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from ...wan_core.errors import WanTrainerError
from ...wan_core.files import confine, locked, read_json, safe_name
from .samples import read_index

__all__ = ["delete_run", "listed_files"]

_LAST = ("run.json", ".lock")
"""while run.json is there a half deleted run is still listed, and can be deleted again"""
_OF_THE_RUN = ("workflow.json", "metrics.jsonl", "log.txt", "status.json")
_OF_A_RENDERING = ("job.json", "metrics.json")
_RENDERING = re.compile(r"validate-[0-9a-f]{12}")
_STEP = re.compile(r"step-[0-9]{6,}")

Parts = tuple[str, ...]


def delete_run(directory: Path) -> dict[str, object]:
    """Remove the run; {"deleted": number of files, "kept": names of what stays in the folder}.

    FileError while another process trains it.
    """
    busy = f"Run {directory.name} is being trained by another process. Stop that one first."
    deleted = 0
    files = listed_files(directory)
    with locked(directory / ".lock", busy):
        deleted += sum(_remove(directory, parts) for parts in files)
        for folder in sorted({parts[:-1] for parts in files if len(parts) > 1}, key=len, reverse=True):
            _remove_empty(directory, folder)
            _remove_empty(directory, folder[:-1])
    deleted += sum(_remove(directory, (name,)) for name in _LAST)
    _remove_empty(directory.parent, (directory.name,))
    kept = sorted(os.listdir(directory)) if directory.is_dir() else []
    return {"deleted": deleted, "kept": kept}


def listed_files(directory: Path) -> list[Parts]:
    """Every file that belongs to the run as its manifests say, as path parts below it; run.json and .lock apart."""
    return [*((name,) for name in _OF_THE_RUN), *_of_saves(directory), *_of_samples(directory)]


def _of_saves(directory: Path) -> Iterator[Parts]:
    """The files of each saved step whose manifest is there and is its own."""
    with contextlib.suppress(OSError):
        for name in sorted(os.listdir(directory / "saves")):
            if _STEP.fullmatch(name) and _manifest_step(directory, name) == int(name[5:]):
                for file in ("lora.safetensors", "state.safetensors", "manifest.json"):
                    yield ("saves", name, file)


def _manifest_step(directory: Path, name: str) -> int | None:
    try:
        manifest = read_json(confine(directory, f"saves/{name}/manifest.json", "manifest"))
    except (WanTrainerError, OSError):
        return None
    return manifest.get("step") if isinstance(manifest, dict) else None


def _of_samples(directory: Path) -> Iterator[Parts]:
    """Clips in the sample index, what they were made of, and what ValidateVideo measured beside them."""
    seen: dict[Parts, None] = {}
    for entry in read_index(directory):
        *folder, name = entry["file"].split("/")
        stem, dot, _ = name.rpartition(".")
        if not dot or not _is_sample_folder(folder) or not _is_safe(name):
            continue
        twins = [name, f"{stem}.latent"] + ([f"{stem}.png", *_OF_A_RENDERING] if len(folder) == 2 else [])
        seen |= {(*folder, twin): None for twin in twins}
    if seen:
        seen["samples", "index.json"] = None
    yield from seen


def _is_sample_folder(folder: list[str]) -> bool:
    return folder == ["samples"] or (
        len(folder) == 2 and folder[0] == "samples" and bool(_RENDERING.fullmatch(folder[1]))
    )


def _is_safe(name: str) -> bool:
    try:
        return bool(safe_name(name, "sample"))
    except WanTrainerError:
        return False


def _remove(root: Path, parts: Parts) -> bool:
    """Remove one regular file below `root`; False when it is not there, or is none."""
    try:
        with _opened(root, parts[:-1]) as folder:
            if not stat.S_ISREG(_look(folder, parts[-1]).st_mode):
                return False
            if isinstance(folder, int):
                os.unlink(parts[-1], dir_fd=folder)
            else:
                os.unlink(folder / parts[-1])
            return True
    except OSError:
        return False


def _remove_empty(root: Path, parts: Parts) -> None:
    """Remove a folder below `root` if nothing is in it."""
    if not parts:
        return
    with contextlib.suppress(OSError), _opened(root, parts[:-1]) as folder:
        if isinstance(folder, int):
            os.rmdir(parts[-1], dir_fd=folder)
        elif stat.S_ISDIR(_look(folder, parts[-1]).st_mode):
            os.rmdir(folder / parts[-1])


def _look(folder: int | Path, name: str) -> os.stat_result:
    if isinstance(folder, int):
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    return os.lstat(folder / name)


@contextlib.contextmanager
def _opened(root: Path, parts: Parts) -> Iterator[int | Path]:
    """The folder `root/parts` without following a link: an open descriptor, or on Windows, which has none, its path.

    OSError when anything on the way is a link or no folder.
    """
    if os.open not in os.supports_dir_fd:
        place = Path(os.path.realpath(root)).joinpath(*parts)
        if Path(os.path.realpath(place)) != place:
            raise NotADirectoryError(str(place))
        yield place
        return
    flags = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)
    opened = [os.open(root, flags)]
    try:
        for part in parts:
            opened.append(os.open(part, flags, dir_fd=opened[-1]))
        yield opened[-1]
    finally:
        for descriptor in opened:
            os.close(descriptor)
