"""What TrainLoRA leaves in ComfyUI's history: the whole answer an API client waits for, as plain data.

Everything comes from the run's files, so a queue that had nothing to do answers as the one that trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..wan_core.run import QUEUE_DONE, RunStatus, read_run, read_status
from ..wan_core.train import SaveStore
from .publish import listed_names, published
from .runs import RunFacts
from .workflow_file import scrubbed

__all__ = ["run_report", "thinned"]

LOSSES_KEPT = 500
"""history stays in the server's memory, and is sent whole; metrics.jsonl has every step"""


def run_report(
    directory: Path, facts: RunFacts, step: int, loras: Path, *, note: str, stop_pressed: bool
) -> dict[str, Any]:
    """The entry `wan_run` of the node's output; docs/headless.md explains each key.

    `step` is the newest saved step, `loras` the folder LoRAs are published into.
    """
    status, losses, evaluated = read_status(directory), facts.step_losses, facts.eval_losses
    names = listed_names(directory.name, SaveStore(directory).steps(), loras, published(loras))
    return {
        "run": directory.name,
        "directory": directory.name,
        "status": status.state,
        "stopped_by": _stopped_by(status, stop_pressed),
        "reason": scrubbed(status.reason),
        "note": note,
        "step": step,
        "steps": read_run(directory).train.steps,
        "loss_first": losses[0][1] if losses else None,
        "loss_last": losses[-1][1] if losses else None,
        "losses": thinned(losses),
        "eval_loss_first": evaluated[0][1] if evaluated else None,
        "eval_loss_last": evaluated[-1][1] if evaluated else None,
        "eval_losses": thinned(evaluated),
        "eval_held_out": facts.eval_held_out,
        "seconds_per_step": facts.seconds_per_step,
        "lora_name": names[0] if names and step else "",
        "lora_names": names,
        "samples": facts.samples(),
    }


def thinned(points: Sequence[tuple[int, float]], limit: int = LOSSES_KEPT) -> list[tuple[int, float]]:
    """At most `limit` of (step, value) points, evenly spaced, the first and the last among them."""
    if len(points) <= limit:
        return list(points)
    return [points[round(index * (len(points) - 1) / (limit - 1))] for index in range(limit)]


def _stopped_by(status: RunStatus, stop_pressed: bool) -> str:
    """Why a run that is not done returned: stop_and_keep, steps_this_queue or other; empty for one that is done."""
    if status.state == "done":
        return ""
    if stop_pressed:
        return "stop_and_keep"
    return "steps_this_queue" if status.reason.endswith(QUEUE_DONE) else "other"
