"""A run as the page and API clients are told of it: everything from its files, plus what only this process knows."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...wan_core.checkpoint import read_header
from ...wan_core.errors import WanTrainerError
from ...wan_core.files import confine, is_locked
from ...wan_core.metrics import MetricsTail, eval_losses, finite, read_measured, read_tail, whole
from ...wan_core.run import RunConfig, RunStatus, read_run, read_status
from ...wan_core.train import SaveStore
from ..engine.live_runs import LiveRun
from ..runs.publish import chosen_step, listed_names, lora_experts, published
from ..runs.scrub import scrubbed
from .samples import list_samples

__all__ = ["detail", "settings_told", "summary"]

Data = dict[str, Any]
_LONGEST_DEVICE = 40


@dataclass(frozen=True)
class _OnDisk:
    """The files of a run as they were read, once and again when one of them has changed."""

    config: RunConfig
    status: RunStatus
    tail: MetricsTail
    steps: tuple[int, ...]
    """saved ones, newest last"""
    updated: float
    variant: str
    """by the newest saved LoRA; empty when the config says it"""
    settings: dict[str, str]
    """of training and adapter, as JSON texts"""


def summary(directory: Path, live: LiveRun | None, loras: Path, there: Container[str] | None = None) -> Data:
    """SUMMARY of the routes. `loras` is the folder LoRAs are published into, `there` what it holds where that is known.

    Raises WanTrainerError for no run.
    """
    known = _on_disk(str(directory), tuple(_mark(directory, name) for name in _TOLD))
    config, status, tail = known.config, known.status, known.tail
    state, reason = _state(directory, status, live)
    newest = whole(tail.step.get("step"))
    step = newest if state == "running" and newest is not None else status.step
    steps = config.train.steps
    pace = tail.seconds_per_step
    listed = published(loras) if there is None else there
    names = listed_names(directory.name, known.steps, loras, listed, lora_experts(config.train))
    return {
        "id": directory.name,
        "state": state,
        "step": step,
        "steps": steps,
        "reason": _without_secrets(reason),
        "updated": known.updated,
        "loss": finite(tail.step.get("loss")),
        "eval_loss": tail.eval_loss,
        "eval_held_out": tail.eval_held_out,
        "best": whole((tail.suggested or {}).get("best")),
        "best_why": _text((tail.suggested or {}).get("why")),
        "seconds_per_step": pace,
        "seconds_left": _seconds_left(tail, pace, steps - step) if state == "running" else None,
        "expert": config.train.expert,
        "variant": _variant(config, live) or known.variant,
        "lora_names": names,
        "live": live is not None,
        "can_preview": live is not None and live.can_preview,
        "node": live.node if live is not None else None,
        "prompt_id": live.prompt_id if live is not None else None,
        "memory": _memory(config, tail, state == "running"),
    }


def _seconds_left(tail: MetricsTail, pace: float | None, steps: int) -> float | None:
    """Returns the seconds until a run ends that has so many steps to go: earlier where its hours are over before."""
    of_hours = finite(tail.step.get("seconds_left"))
    known = [seconds for seconds in (None if pace is None else pace * max(0, steps), of_hours) if seconds is not None]
    return min(known, default=None)


def settings_told(directory: Path) -> dict[str, str]:
    """Returns the settings of training and adapter of a run as JSON texts, by name; without paths and secrets."""
    return _on_disk(str(directory), tuple(_mark(directory, name) for name in _TOLD)).settings


def detail(directory: Path, live: LiveRun | None, loras: Path) -> Data:
    """SUMMARY, and settings, saved steps and samples."""
    config = read_run(directory)
    metrics = directory / "metrics.jsonl"
    losses = eval_losses(metrics)
    if config.train.expert == "both":  # a step says the loss of one of them; here both count
        losses = {measured.step: measured.loss for measured in read_measured(metrics)}
    return {
        **summary(directory, live, loras),
        "settings": scrubbed({"train": config.train.to_dict(), "lora": config.lora.to_dict()}),
        "saves": [{"step": step, "eval_loss": losses.get(step)} for step in SaveStore(directory).steps()],
        "chosen": chosen_step(directory),
        "samples": [sample.to_dict(directory.name) for sample in list_samples(directory)],
        "has_workflow": (directory / "workflow.json").is_file(),
    }


def _text(value: object) -> str:
    return _without_secrets(value[:1000]) if isinstance(value, str) else ""


def _state(directory: Path, status: RunStatus, live: LiveRun | None) -> tuple[str, str]:
    """Returns (state, reason). A run that says `running` and is held by no process died."""
    if live is not None:
        return "running", ""
    if status.state in ("done", "failed", "stopped"):
        return status.state, status.reason
    if is_locked(directory / ".lock"):
        return "running", ""
    if status.state == "running":
        return "stopped", f"Its process ended unexpectedly after saved step {status.step}. Queue again to resume."
    return "stopped", status.reason or "It was never trained."


_TOLD = ("run.json", "status.json", "metrics.jsonl", "saves")
"""what a summary is read from: while none of them changes, neither does the summary"""


def _mark(directory: Path, name: str) -> tuple[int, int, int] | None:
    """Returns a mark that changes with the file: each of ours is replaced or grows. None where there is none."""
    try:
        facts = os.stat(directory / name)
    except OSError:
        return None
    return facts.st_mtime_ns, facts.st_size, facts.st_ino


@functools.lru_cache(maxsize=8192)
def _on_disk(directory: str, marks: tuple[tuple[int, int, int] | None, ...]) -> _OnDisk:
    """The files of a run as `marks` saw them; WanTrainerError for no run."""
    folder = Path(directory)
    config, steps = read_run(folder), SaveStore(folder).steps()
    settings = scrubbed({**config.lora.to_dict(), **config.train.to_dict()})
    return _OnDisk(
        config=config,
        status=read_status(folder),
        tail=read_tail(folder / "metrics.jsonl"),
        steps=tuple(steps),
        updated=max((mark[0] / 1e9 for mark in marks[:3] if mark is not None), default=0.0),
        variant=_variant_of_saves(folder, steps) if config.model.variant == "auto" else "",
        settings={name: json.dumps(value) for name, value in settings.items()},
    )


def _variant(config: RunConfig, live: LiveRun | None) -> str:
    """The model's variant: as the user named it, or as the node found it; empty where neither says."""
    if config.model.variant != "auto":
        return config.model.variant
    return live.variant if live is not None else ""


def _variant_of_saves(directory: Path, steps: list[int]) -> str:
    """Returns the variant that the newest saved LoRA names."""
    for step in reversed(steps):
        try:
            lora = confine(directory, f"saves/step-{step:06d}/lora.safetensors", "LoRA")
            return str(read_header(lora).metadata.get("wan_trainer.variant", ""))
        except (WanTrainerError, OSError):
            continue
    return ""


@functools.lru_cache(maxsize=1024)
def _without_secrets(text: str) -> str:
    return scrubbed(text)


def _memory(config: RunConfig, tail: MetricsTail, running: bool) -> Data:
    """Bytes by device as the last step says; what a run that has ended holds now is nothing anybody asks about."""
    known = tail.step.get("memory")
    if not isinstance(known, dict) or not known:
        peak = tail.step.get("memory_bytes")  # runs of earlier versions say no more
        known = {_first_device(config): {"peak": peak}} if isinstance(peak, int) else {}
    return {
        _without_secrets(str(device))[:_LONGEST_DEVICE]: {
            "now": _bytes(values.get("now")) if running else None,
            "peak": _bytes(values.get("peak")),
            "predicted": _bytes(values.get("predicted")),
        }
        for device, values in known.items()
        if isinstance(values, dict)
    }


def _bytes(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _first_device(config: RunConfig) -> str:
    """Names the device on which `memory_bytes` was measured, as torch does."""
    try:
        return config.model.placement.device_names()[0]
    except WanTrainerError:  # trained on another machine
        return config.model.placement.devices.partition(",")[0]
