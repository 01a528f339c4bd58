"""SUMMARY and DETAIL of the routes: runs by their files, and the state of live runs in this process."""

from __future__ import annotations

import json
from collections.abc import Container
from pathlib import Path

from ...wan_core.errors import WanTrainerError, failure
from ...wan_core.families import template_called
from ...wan_core.files import is_locked
from ...wan_core.job import can_generate, read_run
from ...wan_core.metrics import finite, read_measured, read_ranks, whole
from ...wan_core.train import SaveStore
from ..engine.live_runs import LiveRun, LiveRuns
from ..runs.facts import used
from ..runs.publish import chosen_step, listed_names, published, step_in_use
from ..runs.samples import list_samples
from ..runs.scrub import scrubbed
from .recorded import DAMAGED, Data, Recorded, recorded
from .run_folders import list_runs

_LONGEST, _LONGEST_NAME = 200, 60
"""most characters of a listed setting (JSON) and of a device's name"""


def all_summaries(runs: Path, live: LiveRuns, loras: Path) -> Data:
    """Returns `runs`, the SUMMARY of every readable run, live and newest first, and `common`, the settings that are
    equal in all runs. Each SUMMARY has the `settings` in which runs differ.
    """
    found: list[tuple[Data, dict[str, str]]] = []
    there = published(loras)
    for _, directory in list_runs(runs):
        try:
            run = recorded(directory)
            found.append((summary(run, live.get(directory.name), loras, there), run.settings))
        except (WanTrainerError, OSError, *DAMAGED):
            continue  # The run is of another version, damaged, or just deleted.
    values: dict[str, set[str]] = {}
    for _, settings in found:
        for name, text in settings.items():
            values.setdefault(name, set()).add(text)
    differ = {name for name, known in values.items() if len(known) > 1}
    listed = [{**about, "settings": _shown(settings, differ)} for about, settings in found]
    listed.sort(key=lambda about: (about["live"], about["updated"]), reverse=True)
    return {"runs": listed, "common": _shown(found[0][1], found[0][1].keys() - differ) if found else {}}


def _shown(settings: dict[str, str], names: set[str]) -> Data:
    return {name: json.loads(text) for name, text in settings.items() if name in names and len(text) <= _LONGEST}


def summary(run: Recorded, live: LiveRun | None, loras: Path, there: Container[str] | None = None) -> Data:
    """Returns SUMMARY of the routes. `loras`: the folder of published LoRAs. `there`: its files, if known."""
    state, reason = _state(run, live)
    running, about, tail = state == "running", run.summary, run.tail
    step = tail.reached if running and tail.reached is not None else about["step"]
    memory, left = about["memory"], None
    if running:  # with saves, evaluations and previews, or until the end of its hours, if that is earlier
        pace, others = tail.seconds_per_step, finite(tail.step.get("beside_left")) or 0.0
        of_steps = None if pace is None else pace * max(0, about["steps"] - step) + others
        ends = (of_steps, finite(tail.step.get("seconds_left")))
        left = min((seconds for seconds in ends if seconds is not None), default=None)
    return {
        **about,
        "state": state,
        "step": step,
        "reason": reason,
        "seconds_left": left,
        "variant": (live.variant if live is not None else "") or about["variant"],
        "lora_names": listed_names(
            run.directory.name, run.saves, loras, published(loras) if there is None else there, run.experts
        ),
        "live": live is not None,
        "can_preview": live is not None and live.can_preview,
        "node": live.node if live is not None else None,
        "prompt_id": live.prompt_id if live is not None else None,
        # An ended run has no memory allocated, though its last step recorded some.
        "memory": memory if running else {device: {**sizes, "now": None} for device, sizes in memory.items()},
    }


def detail(directory: Path, live: LiveRun | None, loras: Path) -> Data:
    """Returns DETAIL: SUMMARY, settings, saved steps, samples, and the model of each LoRA."""
    config, run = read_run(directory), recorded(directory)
    losses = {measured.step: measured.loss for measured in read_measured(directory / "metrics.jsonl")}
    about = summary(run, live, loras)
    use = used(directory, config, about["lora_names"])
    return {
        **about,
        "can_generate": bool(use) and can_generate(about["variant"]),
        "use": use,
        "template": template_called(about["variant"]),
        "settings": scrubbed({"train": config.train.to_dict(), "lora": config.lora.to_dict()}),
        "saves": [{"step": step, "eval_loss": losses.get(step)} for step in SaveStore(directory).steps()],
        "chosen": chosen_step(directory),
        "devices": _devices(directory, running=about["state"] == "running"),
        "in_use": step_in_use(directory, published(loras), run.experts),
        "samples": [sample.to_dict(directory.name) for sample in list_samples(directory)],
        "has_workflow": (directory / "workflow.json").is_file(),
    }


def _devices(directory: Path, *, running: bool) -> list[Data]:
    """Returns the devices of every rank, from the ranks' files; for an ended run, without current values."""
    of_now = ("now", "busy", "silent") if running else ()
    return [
        {
            **{name: scrubbed(str(device.get(name, "")))[:_LONGEST_NAME] for name in ("host", "device", "name")},
            **{name: whole(device.get(name)) for name in ("rank", "peak", "total", *of_now)},
        }
        for device in read_ranks(directory)
    ]


def _state(run: Recorded, live: LiveRun | None) -> tuple[str, str]:
    """Returns (state, reason). A run with the status `running` that no process holds has failed."""
    state, reason = run.summary["state"], run.summary["reason"]
    if live is not None:
        return "running", ""
    if state in ("done", "failed", "stopped"):
        return state, reason
    if is_locked(run.directory / ".lock"):
        return "running", ""
    if state == "running":
        return "failed", failure("Its process ended unexpectedly.", closing="Press Run again to resume.")
    return "stopped", reason or "It was never trained."
