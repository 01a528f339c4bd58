"""Predicts the run that a training would resume or start when queued."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...wan_core.config import names_on_nodes
from ...wan_core.errors import WanTrainerError
from ...wan_core.job import DataConfig, Foreseen, directories_of, foresee
from ...wan_core.lora import LoraConfig
from ..bridge.ahead import Ahead
from ..bridge.widgets import one_of
from ..engine.live_runs import LiveRuns
from ..runs.job import RESUME, RequestedJob
from ..runs.scrub import scrubbed
from .guard import Refused
from .recorded import DAMAGED, RECORDED
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


@dataclass(frozen=True)
class Standing:
    """Predicts from the folder of runs, without writing anything or verifying saved steps."""

    ahead: Ahead
    runs: Callable[[], Path]
    """the folder of run folders"""
    loras: Callable[[], Path]
    live: LiveRuns

    def answer(self, body: Mapping[str, Any]) -> dict[str, Any] | None:
        """Returns the run and the action of queueing as JSON data; None without a run of this name.

        `body["run"]`: the widgets of Train Wan LoRA that decide the job. None also for widgets that a node refuses.
        """
        try:
            found = self._foreseen(body)
            return None if found is None else self._described(found)
        except (WanTrainerError, Refused, OSError, *DAMAGED):
            return None

    def _foreseen(self, body: Mapping[str, Any]) -> Foreseen | None:
        model, settings, widgets = self.ahead.trainer(body, body["run"])
        job = RequestedJob(model, settings, body.get("preview") is not None, widgets)
        if not os.path.lexists(next(directories_of(self.runs(), job.run_name))):
            return None  # early, because the digest of a model file takes time
        config = job.config(_OPEN)
        how = one_of("resume", widgets.get("resume", RESUME[0]), RESUME)
        return foresee(self.runs(), config, resume=how, elsewhere=job.elsewhere(config))

    def _described(self, found: Foreseen) -> dict[str, Any]:
        directory = find_run(self.runs(), found.directory.name)
        about = summary(RECORDED.of(directory), self.live.get(directory.name), self.loras())
        return {
            **{name: about[name] for name in ("id", "state", "step", "steps")},
            "action": found.action,
            "new": found.new,
            "until": found.steps,
            "changes": scrubbed(
                [
                    {
                        "setting": _WIDGETS.get(change.setting, change.setting.rpartition(".")[2]),
                        "there": None if change.is_content else _plain(change.there),
                        "here": None if change.is_content else _plain(change.here),
                    }
                    for change in found.changes
                ]
            ),
        }


def _plain(value: Any) -> str | int | float | bool | None:
    """Returns a value as a widget shows it; None for a long one."""
    if isinstance(value, dict):
        value = value.get("scheme")
    if isinstance(value, str) and len(value) > _LONGEST:
        return None
    return value if isinstance(value, str | int | float) else None
