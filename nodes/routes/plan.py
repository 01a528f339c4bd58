"""What a training would take, asked by a page while somebody turns widgets: memory, measures, time, and what would fit.

Nothing is queued, encoded or loaded, and nothing is written.
"""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import torch

from ...wan_core.placement import Room, card_bytes, resolve_placement, room_here
from ...wan_core.run import Job, card_of, plan_memory, report_of, suggestions_for
from .refusal import Refused

__all__ = ["Planner"]

_KEPT = 64
_PATIENCE_S = 60.0
"""how long a question waits for those before it"""
_LOOKING_S = 20.0
"""after so long, no further suggestion is looked for"""


@dataclass
class Planner:
    """Answers one question at a time, each only once: a plan takes the processor for a second or a few."""

    job: Callable[[Mapping[str, Any]], Job]
    """what a page asks, as a job; raises a WanTrainerError where a node would refuse it"""
    mark: Callable[[Mapping[str, Any]], str]
    """what an answer depends on besides the question"""
    _answers: OrderedDict[str, dict[str, Any]] = field(default_factory=OrderedDict[str, dict[str, Any]])
    _busy: Lock = field(default_factory=Lock)
    _waiting: int = 0
    """questions that wait; a hint, so two threads may count at once"""

    def answer(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the plan as JSON data. For a thread of its own.

        `fits` is null where nothing is planned, `suggestions` unless `asked["suggest"]` and the job does not fit.
        """
        self._waiting += 1
        free = self._busy.acquire(timeout=_PATIENCE_S)
        self._waiting -= 1
        if not free:
            raise Refused(503, "Another plan is being made. Try again in a moment.")
        try:
            key = json.dumps([asked, self.mark(asked)], sort_keys=True)
            found = self._answers.pop(key, None) or self._plan(asked)
            self._answers[key] = found
            while len(self._answers) > _KEPT:
                self._answers.popitem(last=False)
            return found
        finally:
            self._busy.release()

    def _plan(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        job = self.job(asked)
        placement = resolve_placement(job.model.placement, job.file.variant.shape.num_layers)
        room = room_here(placement.devices, ask_driver=False)  # ComfyUI gives its own back before it trains
        if not room.devices:
            return {"version": 1, "fits": None, "devices": [], "suggestions": None}  # on the CPU nothing is planned
        plan = plan_memory(job, room)
        report = report_of(plan, card_of(placement.first))
        devices = [
            {
                "name": name,
                "needed": needs["peak_bytes"],
                "room": needs["room_bytes"],
                "total": card_bytes(torch.device(name)),
            }
            for name, needs in report["devices"].items()
        ]
        seconds = report["step_seconds"]
        return {
            "version": 1,
            "fits": plan.fits,
            "size": report["size"],
            "rank": report["rank"],
            "devices": devices,
            "host": {"needed": report["host"]["bytes"], "room": report["host"]["room_bytes"]},
            "measures": {**report["measures"], "gradient_checkpointing": job.train.gradient_checkpointing},
            "card": report["card"],
            "step_seconds": seconds,
            "seconds": None if seconds is None else round(seconds * job.train.steps),
            "suggestions": self._suggestions(job, room) if asked.get("suggest") is True and not plan.fits else None,
        }

    def _suggestions(self, job: Job, room: Room) -> list[dict[str, int | str]]:
        """Looks for them until its time is over, or somebody asks the next question."""
        end = time.monotonic() + _LOOKING_S
        found = suggestions_for(job, room, enough=lambda: self._waiting > 0 or time.monotonic() > end)
        return [one.settings for one in found]
