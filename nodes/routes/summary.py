"""What the page and API clients are told about a run: everything from its files, plus what only this process knows."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from ...wan_core.checkpoint import read_header
from ...wan_core.errors import WanTrainerError
from ...wan_core.files import confine, file_identity, is_locked
from ...wan_core.metrics import MetricsTail, eval_losses, finite, read_tail, whole
from ...wan_core.run import RunConfig, RunStatus, read_run, read_status
from ...wan_core.train import SaveStore
from ..live_runs import LiveRun
from ..publish import listed_names
from ..workflow_file import scrubbed
from .samples import list_samples

__all__ = ["detail", "summary"]

Data = dict[str, Any]
_LONGEST_DEVICE = 40


def summary(directory: Path, live: LiveRun | None, loras: Path) -> Data:
    """SUMMARY of the routes. `loras` is the folder LoRAs are published into. Raises WanTrainerError for no run."""
    config, status = read_run(directory), read_status(directory)
    tail = read_tail(directory / "metrics.jsonl")
    state, reason = _state(directory, status, live)
    newest = whole(tail.step.get("step"))
    step = newest if state == "running" and newest is not None else status.step
    steps = config.train.steps
    pace = tail.seconds_per_step
    return {
        "id": directory.name,
        "state": state,
        "step": step,
        "steps": steps,
        "reason": scrubbed(reason),
        "updated": _updated(directory),
        "loss": finite(tail.step.get("loss")),
        "eval_loss": tail.eval_loss,
        "seconds_per_step": pace,
        "seconds_left": pace * max(0, steps - step) if pace is not None and state == "running" else None,
        "expert": config.train.expert,
        "variant": _variant(directory, config, live),
        "lora_names": listed_names(directory, loras),
        "live": live is not None,
        "can_preview": live is not None and live.can_preview,
        "node": live.node if live is not None else None,
        "prompt_id": live.prompt_id if live is not None else None,
        "memory": _memory(config, tail, state == "running"),
    }


def detail(directory: Path, live: LiveRun | None, loras: Path) -> Data:
    """SUMMARY, and settings, saved steps and samples."""
    config = read_run(directory)
    losses = eval_losses(directory / "metrics.jsonl")
    return {
        **summary(directory, live, loras),
        "settings": scrubbed({"train": config.train.to_dict(), "lora": config.lora.to_dict()}),
        "saves": [{"step": step, "eval_loss": losses.get(step)} for step in SaveStore(directory).steps()],
        "samples": [sample.to_dict(directory.name) for sample in list_samples(directory)],
        "has_workflow": (directory / "workflow.json").is_file(),
    }


def _state(directory: Path, status: RunStatus, live: LiveRun | None) -> tuple[str, str]:
    """(state, reason). What says `running` and is held by no process died."""
    if live is not None:
        return "running", ""
    if status.state in ("done", "failed", "stopped"):
        return status.state, status.reason
    if is_locked(directory / ".lock"):
        return "running", ""
    if status.state == "running":
        return "stopped", f"Its process ended unexpectedly after saved step {status.step}. Queue again to resume."
    return "stopped", status.reason or "It was never trained."


def _updated(directory: Path) -> float:
    """When anything was written last, in unix seconds."""
    times = [directory / name for name in ("status.json", "metrics.jsonl", "run.json")]
    return max((path.stat().st_mtime for path in times if path.is_file()), default=0.0)


def _variant(directory: Path, config: RunConfig, live: LiveRun | None) -> str:
    """The model's variant: as the user named it, as the node found it, or as the newest saved LoRA says."""
    if config.model.variant != "auto":
        return config.model.variant
    if live is not None and live.variant:
        return live.variant
    for step in reversed(SaveStore(directory).steps()):
        try:
            return _variant_of_lora(
                file_identity(confine(directory, f"saves/step-{step:06d}/lora.safetensors", "LoRA"))
            )
        except (WanTrainerError, OSError):
            continue
    return ""


@functools.lru_cache(maxsize=512)
def _variant_of_lora(identity: tuple[str, int, int, int]) -> str:
    """By path, size, time and inode: a list of many runs reads each header once."""
    return str(read_header(Path(identity[0])).metadata.get("wan_trainer.variant", ""))


def _memory(config: RunConfig, tail: MetricsTail, running: bool) -> Data:
    """Bytes by device as the last step says; what a run that has ended holds now is nothing anybody asks about."""
    known = tail.step.get("memory")
    if not isinstance(known, dict) or not known:
        peak = tail.step.get("memory_bytes")  # runs of earlier versions say no more
        known = {_first_device(config): {"peak": peak}} if isinstance(peak, int) else {}
    return {
        scrubbed(str(device))[:_LONGEST_DEVICE]: {
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
    """Where `memory_bytes` was measured, by the name torch gives it."""
    try:
        return config.model.placement.device_names()[0]
    except WanTrainerError:  # trained on another machine
        return config.model.placement.devices.partition(",")[0]
