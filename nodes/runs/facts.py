"""Facts of a run for node outputs, for choosing a saved step, and for ComfyUI's history.

They are read from files only, so a queue with nothing to train returns the same as the queue that trained.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...wan_core.errors import ConfigError
from ...wan_core.export import trigger_phrase
from ...wan_core.families import template_called
from ...wan_core.files import FileError, confine
from ...wan_core.job import QUEUE_DONE, RunConfig, read_run, read_status, suggested_step, used_on
from ...wan_core.metrics import LossCurve, read_measured, read_tail
from ...wan_core.train import SavedStep, SaveStore
from ...wan_core.words import with_sentences
from .publish import listed_names, lora_experts, name_now, published
from .samples import list_samples
from .scrub import scrubbed


def previews(directory: Path) -> list[dict[str, str]]:
    """Returns preview clips in order of their step, as parameters of ComfyUI's /view."""
    return [output_file(directory / sample.file) for sample in list_samples(directory) if not sample.rendering]


def output_file(path: Path) -> dict[str, str]:
    """Returns a file below output/wan_trainer/<run> as parameters of ComfyUI's /view."""
    # Clips of a rendering are one folder deeper than previews.
    run = next(parent for parent in path.parents if parent.parent.name == "wan_trainer")
    subfolder = path.parent.relative_to(run.parent.parent).as_posix()
    return {"filename": path.name, "subfolder": subfolder, "type": "output"}


_WORDS = ("latest", "best", "all")


def short_digest(data: dict[str, Any]) -> str:
    """Returns 12 hex digits of JSON data, for the name of a file or folder."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:12]


def parsed_steps(wanted: str) -> tuple[int | str, ...]:
    """Returns the words and numbers of a list of saved steps; `latest` for an empty list. Raises ConfigError for other
    text."""
    parts = wanted.lower().replace(",", " ").split() or ["latest"]
    try:
        found = tuple(dict.fromkeys(part if part in _WORDS else int(part) for part in parts))
        if any(isinstance(step, int) and step < 1 for step in found):
            raise ValueError("steps are counted from 1")
        return found
    except ValueError as error:
        raise ConfigError(
            f'saved step "{wanted[:100]}" is not latest, best, all or numbers such as 250, 500.'
        ) from error


def chosen_steps(directory: Path, wanted: str) -> tuple[int, ...]:
    """Returns the saved steps of a list such as "best, 250"; `best` is the suggested one, else the newest.

    Raises ConfigError for a missing step.
    """
    store = SaveStore(directory)
    requested, steps = parsed_steps(wanted), store.steps()
    if not steps:
        raise ConfigError("Run {name} has no saved step yet. Train it first.", name=directory.name)
    found: list[int] = []
    for step in requested:
        if step == "all":
            found += steps
        elif isinstance(step, str):
            best, newest = suggested_step(directory) if step == "best" else None, store.latest()
            found.append(best or (newest.step if newest is not None else steps[-1]))
        elif step in steps:
            found.append(step)
        else:
            raise ConfigError(
                "Run {name} has no saved step {step}. It has: {steps}.",
                name=directory.name,
                step=step,
                steps=", ".join(map(str, steps)),
            )
    return tuple(dict.fromkeys(found))


def saved_step(directory: Path, step: int) -> SavedStep:
    """Returns a saved step whose checksums were verified. Raises ConfigError for a damaged one."""
    saved = SaveStore(directory).read(step)
    if saved is None:
        raise ConfigError(
            f"Saved step {step} of {directory.name} is damaged. Choose another saved step, or train again."
        )
    return saved


_LOSSES_KEPT = 500
"""most points of a curve in ComfyUI's history, which the server keeps in memory; metrics.jsonl has every step"""


def run_report(
    directory: Path, curve: LossCurve, step: int, loras: Path, *, variant: str, note: str, stop_pressed: bool
) -> dict[str, Any]:
    """Returns the entry `wan_run` of the node's output (keys: docs/use/headless.md); `step` is the newest saved one."""
    status, config, metrics = read_status(directory), read_run(directory), directory / "metrics.jsonl"
    losses = list(zip(curve.steps.tolist(), curve.losses.tolist(), strict=True))
    evaluated = [(measured.step, measured.loss) for measured in read_measured(metrics)]
    experts = lora_experts(config.train)
    names = listed_names(directory.name, SaveStore(directory).steps(), loras, published(loras), experts)
    stopped_by = ""
    if status.state != "done":
        stopped_by = "steps_this_queue" if status.reason.endswith(QUEUE_DONE) else "other"
        stopped_by = "stop_and_keep" if stop_pressed else stopped_by
    report = {
        "run": directory.name,
        "directory": directory.name,
        "status": status.state,
        "stopped_by": stopped_by,
        "reason": scrubbed(status.reason),
        "note": note,
        "step": step,
        "steps": config.train.steps,
        "loss_first": losses[0][1] if losses else None,
        "loss_last": losses[-1][1] if losses else None,
        "losses": thinned(losses),
        "eval_loss_first": evaluated[0][1] if evaluated else None,
        # The loss before training is no result.
        "eval_loss_last": evaluated[-1][1] if evaluated and evaluated[-1][0] > evaluated[0][0] else None,
        "eval_losses": thinned(evaluated),
        "eval_held_out": read_tail(metrics).eval_held_out,
        "seconds_per_step": curve.seconds_per_step,
        "lora_name": name_now(directory.name, experts[0], names) if step else "",
        "lora_names": names,
        "use": used(directory, config, names),
        "template": template_called(variant),
        "samples": previews(directory),
    }
    return with_sentences(report)


def used(directory: Path, config: RunConfig, names: Sequence[str]) -> list[dict[str, Any]]:
    """Returns the LoRA of each model by its name in loader lists (`names`), with the newest step's trigger words."""
    listed = {expert: name_now(directory.name, expert, names) for expert in lora_experts(config.train)}
    words, steps = "", SaveStore(directory).steps()
    with contextlib.suppress(FileError):
        words = trigger_phrase(confine(directory, f"saves/step-{max(steps, default=0):06d}/lora.safetensors", "LoRA"))
    return used_on(config, {expert: name for expert, name in listed.items() if name}, scrubbed(words))


def thinned(points: Sequence[tuple[int, float]], limit: int = _LOSSES_KEPT) -> list[tuple[int, float]]:
    """Returns at most `limit` points (step, value), evenly spaced, with the first and the last."""
    if len(points) <= limit:
        return list(points)
    return [points[round(index * (len(points) - 1) / (limit - 1))] for index in range(limit)]
