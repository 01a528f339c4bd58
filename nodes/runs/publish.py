"""LoRAs of a run where ComfyUI's loaders list them: loras/wan_trainer/<run>.safetensors, and one per saved step."""

from __future__ import annotations

import os
from collections.abc import Container, Iterable
from pathlib import Path

from ...wan_core.errors import CheckpointError, ExportError
from ...wan_core.export import publish_file, withdraw_file
from ...wan_core.files import FileError, atomic_write_json, clean_partials, read_json
from ...wan_core.metrics import whole
from ...wan_core.run import disk_sentence
from ...wan_core.train import EXPERTS, SavedStep, SaveStore, TrainConfig
from ..bridge import folders

__all__ = [
    "CHOICE",
    "chosen",
    "chosen_step",
    "listed_name",
    "listed_names",
    "lora_experts",
    "publish",
    "published",
    "step_in_use",
    "use_step",
]

CHOICE = "chosen.json"
"""in the folder of a run: the saved step that somebody chose, and which was the newest then"""


def publish(directory: Path, saved: SavedStep) -> str:
    """Copy the LoRAs of a saved step as the run's newest and under its step.

    Of a pair whose second expert has not begun there, the newest of that one is taken away: it is of another step.
    Returns the name of the first in loader lists.
    """
    target = folders.publish_folder()
    try:
        target.mkdir(parents=True, exist_ok=True)
        clean_partials(target)
        for expert, file in saved.loras.items():
            stem = _stem(directory.name, expert)
            for name in (f"{stem}_{saved.step:06d}", stem):
                publish_file(file, target / f"{name}.safetensors", saved.job_id)
        for expert in () if "" in saved.loras else (one for one in EXPERTS if one not in saved.loras):
            withdraw_file(target / f"{_stem(directory.name, expert)}.safetensors", saved.job_id)
    except (OSError, FileError) as error:
        why = (disk_sentence(error) if isinstance(error, OSError) else str(error)).rstrip(".")
        raise ExportError(
            f"The LoRA could not be put into {os.path.join(target.parent.name, target.name)} ({why}). "
            f"It is safe in {directory.name}/saves/{saved.folder.name}; make the folder writable and press Run again."
        ) from error
    return listed_name(directory.name, next(iter(saved.loras)))


def use_step(directory: Path, step: int) -> str:
    """Publish a saved step as the run's LoRA and remember the choice; returns its name in loader lists.

    Raises CheckpointError for a step that is not there whole.
    """
    store = SaveStore(directory)
    saved = store.read(step)
    if saved is None:
        raise CheckpointError(f"Run {directory.name} has no intact saved step {step}. Choose another one.")
    name = publish(directory, saved)
    newest = max(store.steps(), default=step)
    choice = {"version": 1, "step": step, "newest": newest}
    atomic_write_json(directory / CHOICE, choice, directory.parent, make=False)
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


def step_in_use(directory: Path, there: Container[str], experts: Iterable[str]) -> int | None:
    """The saved step that the LoRA under the run's name is of; None where that is not known to be published.

    `there` is what `published` found; a step that was published has a file of its own beside it.
    """
    steps = SaveStore(directory).steps()
    step = chosen_step(directory) or (steps[-1] if steps else None)
    stems = [_stem(directory.name, expert) for expert in experts]
    is_there = step is not None and any(
        f"{stem}.safetensors" in there and f"{stem}_{step:06d}.safetensors" in there for stem in stems
    )
    return step if is_there else None


def listed_name(run: str, expert: str = "") -> str:
    """The newest LoRA of a run, or the chosen one, spelled exactly as loader lists spell it;
    of both experts that of `expert`.
    """
    return os.path.join("wan_trainer", f"{_stem(run, expert)}.safetensors")


def _stem(run: str, expert: str) -> str:
    return f"{run}_{expert}_noise" if expert else run


def published(folder: Path) -> frozenset[str]:
    """The files in the folder LoRAs are published into."""
    try:
        return frozenset(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return frozenset()


def listed_names(
    run: str, steps: Iterable[int], folder: Path, there: Container[str], experts: Iterable[str] = ("",)
) -> list[str]:
    """The LoRAs of a run that are in `folder`, as loader lists spell them: its newest, then those of each saved step.

    `steps` are the saved steps, newest last; `there` is what `published` found; `experts` are high and low where both
    are trained.
    """
    stems = [_stem(run, expert) for expert in experts]
    wanted = [*stems, *(f"{stem}_{step:06d}" for step in sorted(steps, reverse=True) for stem in stems)]
    return [os.path.join(folder.name, f"{name}.safetensors") for name in wanted if f"{name}.safetensors" in there]


def lora_experts(train: TrainConfig) -> tuple[str, ...]:
    """The experts whose LoRAs a run publishes under names of their own; one of no name where one model is trained."""
    return train.experts if train.expert == "both" else ("",)
