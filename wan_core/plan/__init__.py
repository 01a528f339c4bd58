"""The plan of a run before anything is loaded: memory, time, and the settings that make it fit."""

from __future__ import annotations

from .here import plan_here
from .memory_job import Job, beside_preview, job_on_clips
from .own_runs import own_runs_of
from .planning import MemoryPlan, plan_memory
from .report import plan_sentences, report_of, report_run, report_settings
from .suggestions import suggestions_for

__all__ = [
    "Job",
    "MemoryPlan",
    "beside_preview",
    "job_on_clips",
    "own_runs_of",
    "plan_here",
    "plan_memory",
    "plan_sentences",
    "report_of",
    "report_run",
    "report_settings",
    "suggestions_for",
]
