"""The plan of a run before anything is loaded: memory, time, and the settings that make it fit."""

from __future__ import annotations

from .job import Job
from .memory_report import (
    beside_preview,
    card_of,
    job_on_clips,
    plan_here,
    plan_run,
    plan_sentences,
    plan_settings,
    report_of,
)
from .own_runs import own_runs_of
from .partner import with_partner_digest
from .planning import MemoryPlan, plan_memory
from .preview_size import is_free_of_clips, sized_as_template
from .suggestions import suggestions_for
from .without_run import preview_without_run, untrained_run

__all__ = [
    "Job",
    "MemoryPlan",
    "beside_preview",
    "card_of",
    "is_free_of_clips",
    "job_on_clips",
    "own_runs_of",
    "plan_here",
    "plan_memory",
    "plan_run",
    "plan_sentences",
    "plan_settings",
    "preview_without_run",
    "report_of",
    "sized_as_template",
    "suggestions_for",
    "untrained_run",
    "with_partner_digest",
]
