"""Tells which run a job would go on with or begin, before its clips are encoded: whatever they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import ConfigError
from ..train import SaveStore
from .choose import Change, changes, directories_of, is_free
from .config import RunConfig, read_run
from .length import hours_are_over


@dataclass(frozen=True)
class Foreseen:
    """The outcome of queueing a job, as far as it is known without its clips."""

    directory: Path
    """the run of this job if the clips are its own, else the newest run of that name"""
    action: str
    """start, resume, done or refuse. All but start are so with the clips of that run alone."""
    new: str
    """the name a new run would have; empty where none may be begun"""
    steps: int | None
    """at which it would end; None where the clips decide"""
    changes: tuple[Change, ...] = ()
    """in what the newest run of that name is another job; none where a new one is begun because that was asked for"""


def foresee(
    runs: Path, config: RunConfig, *, resume: str = "auto", elsewhere: Sequence[RunConfig] = ()
) -> Foreseen | None:
    """Returns what `choose_run` would say of this job with the clips of each run of its name; None where there is none.

    The data of `config` does not count. Nothing that was saved is read or verified.
    """
    found: list[tuple[Path, RunConfig]] = []
    new = ""
    for directory in directories_of(runs, config.run_name):
        if is_free(directory):
            new = "" if resume == "require" else directory.name
            break
        try:
            found.append((directory, read_run(directory)))
        except ConfigError:  # no run, or one of another version; choose_run says it
            continue
    if not found:
        return None
    for directory, known in reversed(found):
        jobs = [replace(job, data=known.data) for job in (*elsewhere, config)]
        job = next((job for job in jobs if job.job_id == known.job_id), None)
        if job is None or resume == "new":
            continue
        steps = _steps(job, known)
        over = steps is not None and _reached(directory) >= steps
        action = "done" if over or hours_are_over(directory, job.train) else "resume"
        return Foreseen(directory, action, new, steps)
    directory, known = found[-1]
    why = () if resume == "new" else tuple(changes(replace(config, data=known.data), known))
    return Foreseen(directory, "refuse" if resume == "require" else "start", new, _steps(config, known), why)


def _steps(job: RunConfig, known: RunConfig) -> int | None:
    """Returns the steps of a job on the clips of a run: epochs say as many as they said there."""
    epochs = job.train.max_train_epochs
    if not epochs:
        return job.train.steps
    return known.train.steps if known.train.max_train_epochs == epochs else None


def _reached(directory: Path) -> int:
    store = SaveStore(directory)
    return max((step for step in store.steps() if not store.is_suspect(step)), default=0)
