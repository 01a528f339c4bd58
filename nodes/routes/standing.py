"""Predicts the run that a training would resume or start when queued."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ...wan_core.config import names_on_nodes
from ...wan_core.errors import WanTrainerError
from ...wan_core.job import DataConfig, directories_of, foresee
from ...wan_core.lora import LoraConfig
from ..bridge import folders
from ..bridge.ahead import Ahead
from ..bridge.widgets import one_of
from ..engine.live_runs import LIVE
from ..runs.job import RESUME, RequestedJob
from ..runs.scrub import scrubbed
from .guard import Refused
from .recorded import DAMAGED, recorded
from .run_folders import find_run
from .summary import summary

_WIDGETS = {
    "base_digest": "diffusion_model",
    "low_noise_digest": "low_noise_model",
    "start_digest": "start_from_lora",
    "low_noise_start_digest": "start_from_lora",
    "model.quantize": "scheme",
    **{f"lora.{name}": shown for shown, name in names_on_nodes(LoraConfig).items()},
}
"""setting of run.json -> widget of another name"""
_LONGEST = 60
_OPEN = DataConfig(fingerprint="")


def run_ahead(ahead: Ahead, body: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns the run and the action of queueing as JSON data; None without a run of this name.

    Nothing is written, and no saved step is verified. `body["run"]`: the widgets of Train Wan LoRA that decide the job.
    None also for widgets that a node refuses.
    """
    try:
        runs = folders.runs_folder()
        model, settings, widgets = ahead.trainer(body, body["run"])
        job = RequestedJob(model, settings, body.get("preview") is not None, widgets)
        if not os.path.lexists(next(directories_of(runs, job.run_name))):
            return None  # early, because the digest of a model file takes time
        config = job.config(_OPEN)
        how = one_of("resume", widgets.get("resume", RESUME[0]), RESUME)
        found = foresee(runs, config, resume=how, elsewhere=job.elsewhere(config))
        if found is None:
            return None
        directory = find_run(runs, found.directory.name)
        about = summary(recorded(directory), LIVE.get(directory.name), folders.publish_folder())
    except (WanTrainerError, Refused, OSError, *DAMAGED):
        return None
    changes = [
        {
            "setting": _WIDGETS.get(change.setting, change.setting.rpartition(".")[2]),
            "there": None if change.is_content else _plain(change.there),
            "here": None if change.is_content else _plain(change.here),
        }
        for change in found.changes
    ]
    return {
        **{name: about[name] for name in ("id", "state", "step", "steps")},
        "action": found.action,
        "new": found.new,
        "until": found.steps,
        "changes": scrubbed(changes),
    }


def _plain(value: Any) -> str | int | float | bool | None:
    """Returns a value as a widget shows it; None for a long one."""
    if isinstance(value, dict):
        value = value.get("scheme")
    if isinstance(value, str) and len(value) > _LONGEST:
        return None
    return value if isinstance(value, str | int | float) else None
