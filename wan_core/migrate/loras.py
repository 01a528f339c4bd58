"""LoRAs merged into the base by other trainers, and frozen LoRAs here."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

from .job import Job
from .models import base_name

_MOST = 8


def _add(key: str, file: Any, strength: Any, job: Job) -> None:
    """Adds a frozen LoRA; a repository becomes a hint."""
    name, times = base_name(str(file)), 1.0 if strength is None else float(strength)
    if not name.lower().endswith(".safetensors"):
        job.now.change(f"{key} {str(file)[:80]} -> skipped: it names no file")
        job.hints.append(f"put the file of {str(file)[:80]} among your LoRAs, and add it by Add Frozen LoRA")
    elif len(job.frozen) == _MOST:
        job.now.change(f"{key} {name} -> skipped: {_MOST} LoRAs are taken over")
    else:
        job.frozen.append((name, times))
        job.now.take(f"{key} {name} -> Add Frozen LoRA, strength {times:g}: it acts, and is not trained")


def merged(value: Any, job: Job) -> None:
    """musubi-tuner's files with a list of strengths."""
    strengths = job.said("base_weights_multiplier")
    for file, strength in zip_longest(_listed(value), _listed(strengths)):
        if file is not None:
            _add("base_weights", file, strength, job)


def fused(value: Any, job: Job) -> None:
    """diffusion-pipe's tables of path and weight."""
    for entry in _listed(value):
        _add("fuse_adapters", entry["path"], entry.get("weight"), job)


def assistant(value: str, job: Job) -> None:
    """SimpleTuner's, unless disabled."""
    if str(job.said("disable_assistant_lora") or "").lower() != "true":
        _add("assistant_lora_path", value, job.said("assistant_lora_strength"), job)


def one(key: str) -> Any:
    """Returns a reader of one file at full strength."""

    def read(value: str, job: Job) -> None:
        _add(key, value, None, job)

    return read


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]
