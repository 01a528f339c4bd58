"""LoRAs of a run where ComfyUI's loaders list them: loras/wan_trainer/<run>.safetensors, and one per saved step."""

from __future__ import annotations

import os
from collections.abc import Container, Iterable
from pathlib import Path

from ...wan_core.errors import ExportError
from ...wan_core.export import publish_file
from ...wan_core.files import FileError, clean_partials, confine
from ...wan_core.train import SavedStep
from ..bridge import folders

__all__ = ["listed_name", "listed_names", "publish", "published"]


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


def listed_name(run: str) -> str:
    """The newest LoRA of a run, spelled exactly as loader lists spell it."""
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
