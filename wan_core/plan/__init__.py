"""The plan of a run before anything is loaded: memory, time, and the settings that make it fit."""

from __future__ import annotations

from .cards import Card, card_named, unknown_card
from .here import plan_here
from .memory_job import Job, beside_preview, job_on_clips
from .own_cards import STATE, Constants, keep_constants, state_file
from .own_runs import own_runs_of
from .planning import MemoryPlan, plan_memory
from .report import plan_run, plan_sentences, report_of, report_run, report_settings
from .step_time import Work
from .suggestions import suggestions_for

__all__ = [
    "STATE",
    "Card",
    "Constants",
    "Job",
    "MemoryPlan",
    "Work",
    "beside_preview",
    "card_named",
    "job_on_clips",
    "keep_constants",
    "own_runs_of",
    "plan_here",
    "plan_memory",
    "plan_run",
    "plan_sentences",
    "report_of",
    "report_run",
    "report_settings",
    "state_file",
    "suggestions_for",
    "unknown_card",
]
