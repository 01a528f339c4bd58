"""A run: the settings of a job in one directory, which directory a job belongs to, and the jobs that are done there.

The jobs themselves (train_job, sample_job, ranks) are imported by their files: they load every library.
"""

from __future__ import annotations

from .best_step import suggested_step
from .checks import (
    check_adapters,
    check_quantize,
    on_other_cards,
    trained_variant,
    with_expert,
    with_model_values,
    with_scaled_loss,
)
from .choose import RunDecision, choose_run, directories_of, new_run_name, prepare_run, say_ended
from .closing import used_on
from .config import (
    QUEUE_DONE,
    STATUS_FILES,
    DataConfig,
    RunConfig,
    RunStatus,
    cache_names_in_use,
    read_run,
    read_status,
)
from .foresee import Foreseen, foresee
from .full_disk import disk_sentence
from .grid import Cell, Column, SampleJob, refuse_too_many
from .job import Job
from .length import with_clip_values, with_global_batch
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
from .open import OpenRun, open_experts
from .own_runs import own_runs_of
from .partner import with_partner_digest
from .planning import MemoryPlan, plan_memory
from .preview_size import is_free_of_clips, sized_as_template
from .remarks import notes_on_cards, remarks_on_cards
from .sample_job import sample_job
from .suggestions import suggestions_for
from .without_run import preview_without_run, untrained_run

__all__ = [
    "QUEUE_DONE",
    "STATUS_FILES",
    "Cell",
    "Column",
    "DataConfig",
    "Foreseen",
    "Job",
    "MemoryPlan",
    "OpenRun",
    "RunConfig",
    "RunDecision",
    "RunStatus",
    "SampleJob",
    "beside_preview",
    "cache_names_in_use",
    "card_of",
    "check_adapters",
    "check_quantize",
    "choose_run",
    "directories_of",
    "disk_sentence",
    "foresee",
    "is_free_of_clips",
    "job_on_clips",
    "new_run_name",
    "notes_on_cards",
    "on_other_cards",
    "open_experts",
    "own_runs_of",
    "plan_here",
    "plan_memory",
    "plan_run",
    "plan_sentences",
    "plan_settings",
    "prepare_run",
    "preview_without_run",
    "read_run",
    "read_status",
    "refuse_too_many",
    "remarks_on_cards",
    "report_of",
    "sample_job",
    "say_ended",
    "sized_as_template",
    "suggested_step",
    "suggestions_for",
    "trained_variant",
    "untrained_run",
    "used_on",
    "with_clip_values",
    "with_expert",
    "with_global_batch",
    "with_model_values",
    "with_partner_digest",
    "with_scaled_loss",
]
