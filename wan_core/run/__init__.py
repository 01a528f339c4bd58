"""A run: the settings of a job in one directory, which directory a job belongs to, and the jobs that are done there.

The jobs themselves (train_job, sample_job, ranks) are imported by their files: they load every library.
"""

from __future__ import annotations

from .checks import check_adapters, check_quantize, with_expert, with_model_values
from .choose import RunDecision, choose_run, prepare_run
from .config import QUEUE_DONE, DataConfig, RunConfig, RunStatus, cache_names_in_use, read_run, read_status
from .memory_report import plan_run, plan_settings
from .open import OpenRun, open_run
from .sample_job import SampleJob, sample_job

__all__ = [
    "QUEUE_DONE",
    "DataConfig",
    "OpenRun",
    "RunConfig",
    "RunDecision",
    "RunStatus",
    "SampleJob",
    "cache_names_in_use",
    "check_adapters",
    "check_quantize",
    "choose_run",
    "open_run",
    "plan_run",
    "plan_settings",
    "prepare_run",
    "read_run",
    "read_status",
    "sample_job",
    "with_expert",
    "with_model_values",
]
