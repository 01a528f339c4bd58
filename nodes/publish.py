"""LoRAs of a run where ComfyUI's loaders list them: loras/wan_trainer/<run>.safetensors, and one per saved step."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from ..wan_core.errors import CheckpointError, ExportError
from ..wan_core.files import FileError, atomic_write, confine
from ..wan_core.model import read_header
from ..wan_core.train import SavedStep
from . import folders

__all__ = ["listed_name", "publish"]


def publish(directory: Path, saved: SavedStep) -> str:
    """Copy the LoRA of a saved step as the run's newest and under its step; returns its name in loader lists."""
    target = folders.publish_folder()
    try:
        target.mkdir(parents=True, exist_ok=True)
        for name in (f"{directory.name}_{saved.step:06d}", directory.name):
            _copy(saved, confine(target, f"{name}.safetensors", "LoRA"))
    except (OSError, FileError) as error:
        raise ExportError(
            f"The LoRA could not be put into {os.path.join(target.parent.name, target.name)} ({error}). "
            f"It is safe in {directory.name}/saves/{saved.folder.name}; make the folder writable and queue again."
        ) from error
    return listed_name(directory.name)


def listed_name(run: str) -> str:
    """The newest LoRA of a run, spelled exactly as loader lists spell it."""
    return os.path.join("wan_trainer", f"{run}.safetensors")


def _copy(saved: SavedStep, target: Path) -> None:
    if target.is_file():
        known = _metadata(target)
        if known == (saved.job_id, str(saved.step)):
            return
        if known[0] != saved.job_id:
            _keep_aside(target, known[0])
    with atomic_write(target) as out, open(saved.lora_file, "rb") as source:
        shutil.copyfileobj(source, out, 4 << 20)


def _metadata(path: Path) -> tuple[str, str]:
    """(job id, step) of a published file; empty for a file of somebody else."""
    try:
        metadata = read_header(path).metadata
    except CheckpointError:
        return "", ""
    return metadata.get("wan_trainer.job_id", ""), metadata.get("ss_steps", "")


def _keep_aside(target: Path, job_id: str) -> None:
    """A LoRA of another job has this name (its run was deleted or renamed): it gets a new one."""
    for number in range(1000):
        other = target.with_name(f"{target.stem}_{job_id[:8] or 'kept'}{f'_{number}' if number else ''}{target.suffix}")
        if not other.exists():
            os.replace(target, other)
            return
