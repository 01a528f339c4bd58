"""The plan of a training that is not queued: its memory, measures and time, and settings that would fit.

Nothing is queued, encoded, loaded or written.
"""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any

import torch

from ...wan_core.placement import FreeMemory, card_bytes
from ...wan_core.plan import (
    Workload,
    plan_here,
    plan_preset,
    preset_data,
    report_of,
    run_seconds,
    suggestions_for,
)
from ..bridge.ahead import Ahead
from ..bridge.held_models import held_models, idle_bytes, in_words
from .guard import Refused

NO_PLAN: dict[str, Any] = {"version": 1, "fits": None, "devices": [], "suggestions": None}
_OF_REPORT = ("size", "rank", "preview", "card", "placement", "cards", "own_runs", "routes", "notes", "step_seconds")
"""keys of a plan's report that the page reads as they are"""
_KEPT = 64
_PATIENCE_S = 60.0
"""seconds that a request waits for earlier ones"""
_SEARCH_S = 20.0
"""seconds after which the search for suggestions ends"""


@dataclass
class Planner:
    """Plans one request at a time and caches the answers, because a plan takes some seconds of CPU time."""

    ahead: Ahead
    """makes workloads from requests"""
    standing: Callable[[Mapping[str, Any]], dict[str, Any] | None] = lambda _body: None
    """describes the existing run of this name, for a request with `body["run"]`"""
    held: Callable[[], tuple[str, int]] = lambda: (in_words(held_models()), idle_bytes())
    """returns the host memory that ComfyUI holds, in words, and its bytes that a training would free"""
    _answers: OrderedDict[str, dict[str, Any]] = field(default_factory=OrderedDict[str, dict[str, Any]])
    _busy: Lock = field(default_factory=Lock)
    _waiting: int = 0
    """number of waiting requests; only a hint, so it is not locked"""

    def answer(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the plan as JSON data. Blocks, so it is called in a thread.

        `fits` is null if nothing is planned. `suggestions` is null unless `body["suggest"]` is set and the job does
        not fit; `more`: the search was cut short by another request, so a further request may find more. `run`, if
        requested, is never cached. With `body["preset"]`, the answer has the preset's `settings` by widget name, and
        the predicted `seconds` of the run on `card`.
        """
        self._waiting += 1
        free = self._busy.acquire(timeout=_PATIENCE_S)
        self._waiting -= 1
        if not free:
            raise Refused(503, "Another plan is being computed. Try again in a moment.")
        try:
            if "run" not in body:
                return self._planned(body)
            return {**self._planned(body), "run": self.standing(body)}
        finally:
            self._busy.release()

    def _planned(self, body: Mapping[str, Any]) -> dict[str, Any]:
        body, (held, freed) = self.ahead.counting(body), self.held()
        key = json.dumps([body, self.ahead.mark(body), held, freed], sort_keys=True)
        found = self._answers.pop(key, None) or self._plan(body, held, freed)
        if not found.get("more"):
            self._answers[key] = found
        while len(self._answers) > _KEPT:
            self._answers.popitem(last=False)
        return found

    def _plan(self, body: Mapping[str, Any], held: str, freed: int) -> dict[str, Any]:
        job = self.ahead.job(body)
        if "preset" in body:
            filled = plan_preset(str(body["preset"]), job, freed)
            return {"version": 1, **preset_data(filled, filled.card)}
        plan = plan_here(job, freed)
        if plan is None:
            return NO_PLAN  # on the CPU
        report, found, more = report_of(plan), None, False
        devices = [
            {
                "name": name,
                "needed": needs["peak_bytes"],
                "room": needs["room_bytes"],
                "total": card_bytes(torch.device(name)),
            }
            for name, needs in report["devices"].items()
        ]
        if body.get("suggest") is True and not plan.fits:
            found, more = self._suggestions(replace(job, model=plan.job.model, preview=plan.job.preview), plan.room)
        return {
            "version": 1,
            "fits": plan.fits,
            **{name: report[name] for name in _OF_REPORT},
            "lora_bytes": report["disk"]["lora_bytes"],
            "devices": devices,
            "host": {"needed": report["host"]["bytes"], "room": report["host"]["room_bytes"], "held": held},
            "measures": {**report["measures"], "gradient_checkpointing": job.train.gradient_checkpointing},
            "seconds": run_seconds(report["step_seconds"], job.train),
            "suggestions": found,
            "more": more,
        }

    def _suggestions(self, job: Workload, room: FreeMemory) -> tuple[list[dict[str, int | str]], bool]:
        """Returns the suggestions found in time, and whether another request cut the search short."""
        end, cut = time.monotonic() + _SEARCH_S, False

        def enough() -> bool:
            nonlocal cut
            cut = cut or self._waiting > 0
            return cut or time.monotonic() > end

        return suggestions_for(job, room, enough=enough), cut
