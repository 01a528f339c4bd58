"""A run as the page and API clients are told of it: everything from its files, plus what only this process knows."""

from __future__ import annotations

import functools
from collections.abc import Container
from pathlib import Path
from typing import Any

from ...wan_core.errors import failure
from ...wan_core.families import template_called
from ...wan_core.files import is_locked
from ...wan_core.metrics import eval_losses, read_measured
from ...wan_core.run import read_run
from ...wan_core.train import SaveStore
from ..engine.live_runs import LiveRun
from ..runs.facts import used
from ..runs.publish import chosen_step, listed_names, published, step_in_use
from ..runs.scrub import scrubbed
from .samples import list_samples
from .seen_run import SeenRun
from .seen_runs import SEEN

Data = dict[str, Any]
_LONGEST_DEVICE = 40


def summary(
    directory: Path,
    live: LiveRun | None,
    loras: Path,
    there: Container[str] | None = None,
    seen: SeenRun | None = None,
) -> Data:
    """SUMMARY of the routes. `loras` is the folder LoRAs are published into, `there` what it holds and `seen` what the
    files of the run say, where that is known.

    Raises WanTrainerError for no run.
    """
    seen = seen or SEEN.of(directory)
    state, reason = _state(directory, seen, live)
    step = seen.last_step if state == "running" and seen.last_step is not None else seen.step
    listed = published(loras) if there is None else there
    return {
        "id": directory.name,
        "state": state,
        "step": step,
        "steps": seen.steps,
        "reached": seen.last_step,
        "reason": scrubbed(reason),
        "updated": seen.updated,
        "loss": seen.loss,
        "eval_loss": seen.eval_loss,
        "eval_step": seen.eval_step,
        "eval_held_out": seen.eval_held_out,
        "eval_expert": seen.eval_expert,
        "eval_best": seen.eval_best,
        "eval_best_step": seen.eval_best_step,
        "best": seen.best,
        "best_why": seen.best_why,
        "seconds_per_step": seen.seconds_per_step,
        "seconds_left": _seconds_left(seen, seen.steps - step) if state == "running" else None,
        "expert": seen.expert,
        "variant": seen.variant or (live.variant if live is not None else "") or seen.saved_variant,
        "lora_names": listed_names(directory.name, seen.saves, loras, listed, seen.experts),
        "preview": seen.preview,
        "live": live is not None,
        "can_preview": live is not None and live.can_preview,
        "node": live.node if live is not None else None,
        "prompt_id": live.prompt_id if live is not None else None,
        "memory": _memory(seen, state == "running"),
    }


def _seconds_left(seen: SeenRun, steps: int) -> float | None:
    """Returns the seconds until a run ends that has so many steps to go, with its saves, evaluations and previews:
    earlier where its hours are over before.
    """
    pace = seen.seconds_per_step
    of_steps = None if pace is None else pace * max(0, steps) + seen.beside_left
    return min((seconds for seconds in (of_steps, seen.hours_left) if seconds is not None), default=None)


def detail(directory: Path, live: LiveRun | None, loras: Path) -> Data:
    """SUMMARY, and settings, saved steps, samples, and which LoRA goes on which model."""
    config = read_run(directory)
    metrics = directory / "metrics.jsonl"
    losses = eval_losses(metrics)
    if config.train.expert == "both":  # a step says the loss of one of them; here both count
        losses = {measured.step: measured.loss for measured in read_measured(metrics)}
    about = summary(directory, live, loras)
    return {
        **about,
        "use": used(directory, config, about["lora_names"]),
        "template": template_called(about["variant"]),
        "settings": scrubbed({"train": config.train.to_dict(), "lora": config.lora.to_dict()}),
        "saves": [{"step": step, "eval_loss": losses.get(step)} for step in SaveStore(directory).steps()],
        "chosen": chosen_step(directory),
        "in_use": step_in_use(directory, published(loras), SEEN.of(directory).experts),
        "samples": [sample.to_dict(directory.name) for sample in list_samples(directory)],
        "has_workflow": (directory / "workflow.json").is_file(),
    }


def _state(directory: Path, seen: SeenRun, live: LiveRun | None) -> tuple[str, str]:
    """Returns (state, reason). A run that says `running` and is held by no process died."""
    if live is not None:
        return "running", ""
    if seen.state in ("done", "failed", "stopped"):
        return seen.state, seen.reason
    if is_locked(directory / ".lock"):
        return "running", ""
    if seen.state == "running":
        return "failed", failure("Its process ended unexpectedly.", closing="Press Run again to resume.")
    return "stopped", seen.reason or "It was never trained."


@functools.lru_cache(maxsize=1024)
def _without_secrets(text: str) -> str:
    return scrubbed(text)


def _memory(seen: SeenRun, running: bool) -> Data:
    """Bytes by device as the last step says; what a run that has ended holds now is nothing anybody asks about."""
    return {
        _without_secrets(device)[:_LONGEST_DEVICE]: {
            "now": _bytes(values.get("now")) if running else None,
            "peak": _bytes(values.get("peak")),
            "predicted": _bytes(values.get("predicted")),
            "total": _bytes(values.get("total")),
        }
        for device, values in seen.memory.items()
    }


def _bytes(value: object) -> int | None:
    return value if isinstance(value, int) else None
