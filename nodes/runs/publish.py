"""Publishes a run's LoRAs for ComfyUI's loaders: loras/wan_trainer/<run>.safetensors, and one per saved step."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...wan_core.errors import CheckpointError, ExportError
from ...wan_core.export import publish_file, withdraw_file
from ...wan_core.files import (
    DISK_FULL,
    FileError,
    atomic_write_bytes,
    atomic_write_json,
    clean_partials,
    digest_file,
    read_json,
    remove_file,
)
from ...wan_core.job import disk_sentence
from ...wan_core.metrics import whole
from ...wan_core.train import EXPERTS, SavedStep, SaveStore, TrainConfig
from ..bridge import folders

CHOICE = "chosen.json"
"""file of a run: the saved step that a user chose, and the newest step at that time"""
_BEHIND = ".behind"
"""suffix of a marker file: the LoRA under the run's name is outdated"""


@dataclass(frozen=True)
class Published:
    """The published LoRAs of a saved step."""

    names: dict[str, str]
    """expert -> name in loader lists: the run's, or the step's if the run's could not be replaced"""
    note: str = ""
    """the names that could not be replaced, and the remedy"""


def publish(directory: Path, saved: SavedStep) -> Published:
    """Copies the LoRAs of a saved step to files with the step's name and with the run's name.

    A file with the run's name that cannot be replaced, because a program holds it on Windows, gets a marker as outdated
    until the next call. Raises ExportError if the file with the step's name cannot be written.
    """
    target = folders.publish_folder()
    names, behind = {}, []
    try:
        target.mkdir(parents=True, exist_ok=True)
        clean_partials(target)
        for expert, file in saved.loras.items():
            stem = _stem(directory.name, expert)
            step = f"{stem}_{saved.step:06d}"
            publish_file(file, target / f"{step}.safetensors", saved.job_id)
            is_new = _renewed(target, stem, lambda path, file=file: publish_file(file, path, saved.job_id))
            names[expert] = os.path.join(target.name, f"{stem if is_new else step}.safetensors")
            behind += [] if is_new else [stem]
        # An expert without steps in this save may have an older LoRA under the run's name.
        for expert in () if "" in saved.loras else (one for one in EXPERTS if one not in saved.loras):
            stem = _stem(directory.name, expert)
            behind += [] if _renewed(target, stem, lambda path: withdraw_file(path, saved.job_id)) else [stem]
    except (OSError, FileError) as error:
        why = (disk_sentence(error) if isinstance(error, OSError) else str(error)).rstrip(".")
        raise ExportError(
            "The LoRA could not be put into {file} ({why}). It is safe in {run}/saves/{step}; make the folder "
            "writable and press Run again.",
            file=os.path.join(target.parent.name, target.name),
            why=why,
            run=directory.name,
            step=saved.folder.name,
        ) from error
    note = (
        f"{', '.join(behind)} in {target.name} could not be replaced and is still an older LoRA. The LoRA of step "
        f"{saved.step} is {', '.join(names.values())}; press Run again when nothing uses the old file."
    )
    return Published(names, note if behind else "")


def _renewed(target: Path, stem: str, renew: Callable[[Path], None]) -> bool:
    """Replaces or removes the LoRA under a run's name; returns whether loaders now find the right file."""
    file, mark, is_new = target / f"{stem}.safetensors", target / f"{stem}{_BEHIND}", False
    try:
        renew(file)
        is_new = not _is_shadowed(file)
    except OSError as error:  # the file of the step was written, so another program holds this one
        if error.errno in DISK_FULL:
            raise
    if not is_new:
        atomic_write_bytes(mark, b"The LoRA of this name is an older one of its run.\n")
    elif mark.exists():
        remove_file(mark, target)
    return is_new


def _is_shadowed(file: Path) -> bool:
    """Returns whether loaders first find a different file of this name, in a read-only folder."""
    before = itertools.takewhile(lambda place: place != file.parent, folders.publish_folders())
    others = [place / file.name for place in before if (place / file.name).is_file()]
    return any(not file.is_file() or digest_file(other) != digest_file(file) for other in others)


def use_step(directory: Path, step: int) -> str:
    """Publishes a saved step as the run's LoRA, records the choice, and returns the LoRA's name.

    Raises CheckpointError if the step is missing or damaged.
    """
    store = SaveStore(directory)
    saved = store.read(step)
    if saved is None:
        raise CheckpointError(f"Run {directory.name} has no intact saved step {step}. Choose another one.")
    newest = max(store.steps(), default=step)
    choice = {"version": 1, "step": step, "newest": newest}
    # Written first: an error comes before any LoRA is replaced.
    atomic_write_json(directory / CHOICE, choice, directory.parent, make=False)
    return next(iter(publish(directory, saved).names.values()))


def chosen_step(directory: Path) -> int | None:
    """Returns the saved step chosen with `use_step`, unverified; None without one, or if newer steps exist."""
    try:
        choice = read_json(directory / CHOICE)
    except (FileError, OSError):
        return None
    if not isinstance(choice, dict) or SaveStore(directory).steps()[-1:] != [choice.get("newest")]:
        return None
    return whole(choice.get("step"))


def chosen(directory: Path, job_id: str) -> SavedStep | None:
    """Returns the verified saved step chosen with `use_step`; None without one, and for another job."""
    step = chosen_step(directory)
    saved = None if step is None else SaveStore(directory).read(step)
    return saved if saved and saved.job_id == job_id else None


def step_in_use(directory: Path, there: Container[str], experts: Iterable[str]) -> int | None:
    """Returns the saved step of the LoRA under the run's name; None without such a file in `there` (`published`)."""
    step = chosen_step(directory) or max(SaveStore(directory).steps(), default=None)
    for stem in (_stem(directory.name, expert) for expert in experts) if step is not None else ():
        wanted = (f"{stem}.safetensors", f"{stem}_{step:06d}.safetensors")
        if all(name in there for name in wanted) and f"{stem}{_BEHIND}" not in there:
            return step
    return None


def name_now(run: str, expert: str, names: Sequence[str]) -> str:
    """Returns an expert's LoRA in `names` (`listed_names`): with the run's name, else of the newest step, or ""."""
    stem = _stem(run, expert)
    of_step = re.compile(rf"{re.escape(stem)}_\d{{6,}}\.safetensors")
    current = os.path.join("wan_trainer", f"{stem}.safetensors")
    return next((name for name in names if name == current or of_step.fullmatch(os.path.basename(name))), "")


def _stem(run: str, expert: str) -> str:
    return f"{run}_{expert}" if expert else run


def published(folder: Path) -> frozenset[str]:
    try:
        return frozenset(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return frozenset()


def listed_names(
    run: str, steps: Iterable[int], folder: Path, there: Container[str], experts: Iterable[str] = ("",)
) -> list[str]:
    """Returns the names in loader lists of a run's LoRAs in `there`: the run's, then those of steps, newest first."""
    stems = [_stem(run, expert) for expert in experts]
    current = [stem for stem in stems if f"{stem}{_BEHIND}" not in there]
    wanted = [*current, *(f"{stem}_{step:06d}" for step in sorted(steps, reverse=True) for stem in stems)]
    return [os.path.join(folder.name, f"{name}.safetensors") for name in wanted if f"{name}.safetensors" in there]


def lora_experts(train: TrainConfig) -> tuple[str, ...]:
    """Returns the experts in the names of a run's LoRAs; ("",) if one model is trained."""
    return train.experts if train.expert == "both" else ("",)
