"""Predicts which run a job resumes or starts, before its clips are encoded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import ConfigError
from ..train import SaveStore
from .choose import Change, changes, directories_of, is_free
from .config import RunConfig, read_run
from .length import TimeLimit, job_among


@dataclass(frozen=True)
class Foreseen:
    """The predicted outcome of queueing a job, without its clips."""

    directory: Path
    """the run that this job resumes with the same clips, else the newest run of that name"""
    action: str
    """start, resume, done or refuse; the last three hold only for the same clips"""
    new: str
    """name of a new run; "" if resume is required"""
    steps: int | None
    """steps of the run; None if they depend on the clips"""
    changes: tuple[Change, ...] = ()
    """differences to the newest run of that name; none if a new run was requested"""


def foresee(
    runs: Path, config: RunConfig, *, resume: str = "auto", elsewhere: Sequence[RunConfig] = ()
) -> Foreseen | None:
    """Returns what `choose_run` would decide if this job had the clips of a run of its name; None without such a run.

    Saved steps are neither read nor verified.
    """
    found: list[tuple[Path, RunConfig]] = []
    new = ""
    for directory in directories_of(runs, config.run_name):
        if is_free(directory):
            new = "" if resume == "require" else directory.name
            break
        try:
            found.append((directory, read_run(directory)))
        except ConfigError:  # no run, or of another version: `choose_run` refuses it
            continue
    if not found:
        return None
    for directory, known in reversed(found):
        jobs = [replace(job, data=known.data) for job in (*elsewhere, config)]
        store = SaveStore(directory)
        job = job_among(jobs, known, store.stated())
        if job is None or resume == "new":
            continue
        steps = _steps(job, known)
        reached = max((step for step in store.steps() if not store.is_suspect(step)), default=0)
        over = steps is not None and reached >= steps
        action = "done" if over or TimeLimit(directory, job.train).is_over else "resume"
        return Foreseen(directory, action, new, steps)
    directory, known = found[-1]
    why = () if resume == "new" else tuple(changes(replace(config, data=known.data), known))
    return Foreseen(directory, "refuse" if resume == "require" else "start", new, _steps(config, known), why)


def _steps(job: RunConfig, known: RunConfig) -> int | None:
    """Returns the steps of a job on the clips of the run `known`; None if the job has another number of epochs."""
    epochs = job.train.max_train_epochs
    if not epochs:
        return job.train.steps
    return known.train.steps if known.train.max_train_epochs == epochs else None
