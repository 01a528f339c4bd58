"""LoRAs of a run where ComfyUI's loaders list them: loras/wan_trainer/<run>.safetensors, and one per saved step."""

from __future__ import annotations

import os
from collections.abc import Container, Iterable
from pathlib import Path

from ...wan_core.errors import CheckpointError, ExportError
from ...wan_core.export import publish_file
from ...wan_core.files import FileError, atomic_write_json, clean_partials, confine, read_json
from ...wan_core.metrics import whole
from ...wan_core.train import SavedStep, SaveStore
from ..bridge import folders

__all__ = ["CHOICE", "chosen", "chosen_step", "listed_name", "listed_names", "publish", "published", "use_step"]

CHOICE = "chosen.json"
"""in the folder of a run: the saved step that somebody chose, and which was the newest then"""


def publish(directory: Path, saved: SavedStep) -> str:
    """Copy the LoRA of a saved step as the run's newest and under its step; returns its name in loader lists."""
    target = folders.publish_folder()
    try:
        target.mkdir(parents=True, exist_ok=True)
        clean_partials(target)
        for name in (f"{directory.name}_{saved.step:06d}", directory.name):
            publish_file(saved.lora_file, confine(target, f"{name}.safetensors", "LoRA"), saved.job_id)
    except (OSError, FileError) as error:
        raise ExportError(
            f"The LoRA could not be put into {os.path.join(target.parent.name, target.name)} ({error}). "
            f"It is safe in {directory.name}/saves/{saved.folder.name}; make the folder writable and queue again."
        ) from error
    return listed_name(directory.name)


def use_step(directory: Path, step: int) -> str:
    """Publish a saved step as the run's LoRA and remember the choice; returns its name in loader lists.

    Raises CheckpointError for a step that is not there whole.
    """
    store = SaveStore(directory)
    saved = store.read(step)
    if saved is None:
        raise CheckpointError(f"Run {directory.name} has no intact saved step {step}. Choose another one.")
    name = publish(directory, saved)
    atomic_write_json(directory / CHOICE, {"version": 1, "step": step, "newest": store.steps()[-1]})
    return name


def chosen_step(directory: Path) -> int | None:
    """The saved step chosen with `use_step`, not verified; None where nobody chose or the run was trained on since."""
    try:
        choice = read_json(directory / CHOICE)
    except (FileError, OSError):
        return None
    if not isinstance(choice, dict) or SaveStore(directory).steps()[-1:] != [choice.get("newest")]:
        return None
    return whole(choice.get("step"))


def chosen(directory: Path, job_id: str) -> SavedStep | None:
    """The saved step chosen with `use_step`, where it verifies and is of that job."""
    step = chosen_step(directory)
    saved = SaveStore(directory).read(step) if step is not None else None
    return saved if saved is not None and saved.job_id == job_id else None


def listed_name(run: str) -> str:
    """The newest LoRA of a run, or the chosen one, spelled exactly as loader lists spell it."""
    return os.path.join("wan_trainer", f"{run}.safetensors")


def published(folder: Path) -> frozenset[str]:
    """The files in the folder LoRAs are published into."""
    return frozenset(os.listdir(folder)) if folder.is_dir() else frozenset()


def listed_names(run: str, steps: Iterable[int], folder: Path, there: Container[str]) -> list[str]:
    """The LoRAs of a run that are in `folder`, as loader lists spell them: its newest, then one per saved step.

    `steps` are the saved steps, newest last; `there` is what `published` found.
    """
    wanted = [run, *(f"{run}_{step:06d}" for step in sorted(steps, reverse=True))]
    return [os.path.join(folder.name, f"{name}.safetensors") for name in wanted if f"{name}.safetensors" in there]
