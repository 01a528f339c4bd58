"""Deletes a run: the files that its manifests list, one by one, then empty folders (rule S16).

Files of the user in the folder are kept, and no link is followed. A file that another program holds open on Windows is
kept together with its manifest, so that the run is still listed and can be deleted later.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from ...wan_core.errors import WanTrainerError
from ...wan_core.files import (
    FileError,
    confine,
    freed_by,
    locked,
    opened_folder,
    read_json,
    remove_empty,
    remove_file,
)
from ...wan_core.job import STATUS_FILES
from ...wan_core.metrics import FOLDER, RANK_FILE
from ...wan_core.train import SAVED_FILES
from ..engine.process import NEXT_LOG
from ..runs.publish import CHOICE
from ..runs.samples import Parts, read_index

_LAST = (".lock", "run.json")
"""run.json is deleted last: with it, a half deleted run is still listed and can be deleted again"""
_OF_THE_RUN = ("workflow.json", "metrics.jsonl", "log.txt", NEXT_LOG, *STATUS_FILES, CHOICE)
_MANIFESTS = ("manifest.json", "index.json", "run.json")
"""deleted after the files that they list"""
_OF_A_RENDERING = ("job.json", "metrics.json")
_OF_A_JOB = re.compile(r"(job-[0-9a-f]{12}\.json|grid-[0-9a-f]{12}\.(png|mp4|webm))")
"""files in the folder of a rendering"""
_EVENT_FILE = re.compile(r"events\.out\.tfevents\.[0-9]+\.[^/\\]{1,200}")
"""TensorBoard's names"""
_PREVIEW = re.compile(r"step-[0-9]{6,12}_p[0-9]{1,4}(_[A-Za-z0-9-]{1,40})?\.(latent|mp4|webm|png|webp)")
"""includes previews without an index entry: not decoded, or written while another program held the index"""
_PROFILE = re.compile(r"steps-[0-9]{6,}-[0-9]{6,}\.(json\.gz|txt)|memory-[0-9]{6,}\.pickle")
_STEP = re.compile(r"step-[0-9]{6,}")
_PAUSES = (0.1, 0.4, 1.5)
_SHOWN = 3
"""names of files in a refusal"""


def delete_run(directory: Path) -> dict[str, object]:
    """Removes the run. Returns {"deleted": number of files, "freed": bytes, "kept": names that stay in the folder}.
    Raises FileError while another process trains it, or while another program holds its files open.
    """
    runs = directory.parent
    busy = f"Run {directory.name} is being trained by another process. Stop that one first."
    with locked(directory / ".lock", busy, runs):
        files = listed_files(directory)
        freed = _bytes_of(directory, files)
        deleted, held = _remove(directory, files)
        folders = {parts[:depth] for parts in files for depth in range(1, len(parts))}
        for folder in sorted(folders, key=len, reverse=True):  # deepest first: only empty folders can be removed
            remove_empty(directory.joinpath(*folder), runs)
    if not held:
        gone, held = _remove(directory, [(name,) for name in _LAST])
        deleted += gone
    if held:
        names = ", ".join("/".join(parts) for parts in held[:_SHOWN]) + (" and others" if held[_SHOWN:] else "")
        raise FileError(
            f"Run {directory.name} is deleted, except {names}: another program, such as a viewer, a virus scanner or "
            "one that syncs folders, has that open, or the folder is not writable. Close it there, then delete the "
            "run again; until then the run is listed."
        )
    remove_empty(directory, runs)
    try:
        kept = sorted(os.listdir(directory))
    except FileNotFoundError:
        kept = []
    return {"deleted": deleted, "freed": freed, "kept": kept}


def _remove(directory: Path, files: Sequence[Parts]) -> tuple[int, list[Parts]]:
    """Removes files, with retries for those that a request of this server or a virus scanner holds open.

    Returns how many were removed, and which remain; a manifest of a remaining file is not removed.
    """
    gone, held = 0, list[Parts]()
    for seconds in (0.0, *_PAUSES):
        time.sleep(seconds)
        held = []
        for parts in files:
            file, folder = directory.joinpath(*parts), parts[:-1]
            if parts[-1] in _MANIFESTS and any(other[: len(folder)] == folder for other in held):
                continue  # a remaining file can be deleted later only by its manifest
            if remove_file(file, directory.parent):
                gone += 1
            elif _is_there(file, directory.parent):
                held.append(parts)
        if not held:
            break
    return gone, held


def _is_there(file: Path, below: Path) -> bool:
    with contextlib.suppress(OSError), opened_folder(file.parent, below) as folder:
        return folder.is_regular(file.name) is True
    return False


def bytes_of_run(directory: Path) -> int:
    return _bytes_of(directory, listed_files(directory))


def _bytes_of(directory: Path, files: Iterable[Parts]) -> int:
    return sum(freed_by(directory.joinpath(*parts), directory.parent) for parts in files)


def listed_files(directory: Path) -> list[Parts]:
    """Returns the files of a run by its manifests, as path parts, without run.json and .lock."""
    of_run = ((name,) for name in _OF_THE_RUN)
    return list(dict.fromkeys((*of_run, *_of_saves(directory), *_of_folders(directory), *_of_samples(directory))))


def _of_folders(directory: Path) -> Iterator[Parts]:
    """Yields the files that no manifest lists, by the pattern of their names."""
    of_folders = {"samples": _PREVIEW, "tensorboard": _EVENT_FILE, "profile": _PROFILE, FOLDER: RANK_FILE}
    for folder, names in of_folders.items():
        with contextlib.suppress(OSError):
            for name in sorted(os.listdir(directory / folder)):
                if names.fullmatch(name):
                    yield (folder, name)


def _of_saves(directory: Path) -> Iterator[Parts]:
    """Yields the files of each saved step whose manifest names that step."""
    with contextlib.suppress(OSError):
        for name in filter(_STEP.fullmatch, sorted(os.listdir(directory / "saves"))):
            with contextlib.suppress(WanTrainerError, OSError):
                manifest = read_json(confine(directory, f"saves/{name}/manifest.json", "manifest"))
                step = manifest.get("step") if isinstance(manifest, dict) else None
                if step == int(name[5:]):
                    yield from (("saves", name, file) for file in SAVED_FILES)


def _of_samples(directory: Path) -> Iterator[Parts]:
    """Yields the clips of the sample index with their latents, stills, measurements and grids."""
    seen: dict[Parts, None] = {}
    renderings: set[Parts] = set()
    for entry in read_index(directory):
        *folder, name = entry["file"].split("/")
        stem = name.rpartition(".")[0] or name
        twins = [name, f"{stem}.latent"]
        if len(folder) == 2:
            twins += [f"{stem}.png", f"{stem}.json", *_OF_A_RENDERING]
            renderings.add(tuple(folder))
        seen |= {(*folder, twin): None for twin in twins}
    for folder in sorted(renderings):
        with contextlib.suppress(OSError):
            names = os.listdir(directory.joinpath(*folder))
            seen |= {(*folder, name): None for name in sorted(names) if _OF_A_JOB.fullmatch(name)}
    if seen:
        seen["samples", "index.json"] = None
    yield from seen
