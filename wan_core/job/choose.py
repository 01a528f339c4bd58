"""Finds the run directory of a job by the job's identity, never by its name, and prepares it for training."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from ..files import (
    atomic_write_json,
    is_partial,
    name_key,
    opened_folder,
    read_json,
    remove_empty,
    remove_file,
    replace_patiently,
    safe_name,
)
from ..train import SavedStep, SaveStore, check_split
from ..words import filled, plain
from .config import ForeignRun, NewerRun, RunConfig, RunStatus, read_run, read_status, write_status
from .length import TimeLimit, job_among

UNREAD = "run.unread.json"
"""new name of an unreadable run.json, if the saved steps identify the run"""
_ROOM = 5
"""characters for a suffix such as _002, besides those that `safe_name` reserves"""


@dataclass(frozen=True)
class RunDecision:
    """The directory of a job, and whether it starts, resumes or is done."""

    directory: Path
    action: str
    """start, resume or done"""
    note: str
    """one sentence for the user"""
    job: RunConfig
    """the requested job, in the dtypes of the card that its run started on"""

    def __post_init__(self) -> None:
        object.__setattr__(self, "note", plain(self.note))


def choose_run(
    runs: Path, config: RunConfig, *, resume: str = "auto", elsewhere: Sequence[RunConfig] = ()
) -> RunDecision:
    """Find the run of this job below `runs`, or the next free name (suffix _002, _003 ...). Creates nothing.

    `elsewhere`: the same job in the dtypes of other cards; a run started on one resumes in its dtypes. `resume`: auto;
    new (always a new directory); require (ConfigError with the differences if there is no such run).
    """
    if resume not in ("auto", "new", "require"):
        raise ConfigError(f'resume "{resume}" is unknown. Use auto, new or require.')
    if runs.exists() and not runs.is_dir():
        raise ConfigError(f"The output folder {runs.name} is a file. Move it away, so that runs can be written there.")
    new_run_name(config.run_name)
    different: list[str] = []
    free: Path | None = None
    wanted = {job.job_id: job for job in (*elsewhere, config)}
    same: list[tuple[Path, RunConfig, RunConfig]] = []
    unread: dict[Path, str] = {}
    for directory in directories_of(runs, config.run_name):
        name = directory.name
        if is_free(directory):
            free = directory
            break
        if not (directory / "run.json").is_file():
            different.append(filled("{name} is not a run of Wan Trainer", name=name))
            continue
        stated = SaveStore(directory).stated()  # a manifest also names the job, under a checksum
        rescued = None if stated is None else wanted.get(stated.job_id)
        try:
            known = read_run(directory)
        except ConfigError as error:
            if rescued is None and not isinstance(error, ForeignRun):
                raise
            if rescued is None or isinstance(error, NewerRun):
                different.append(str(error).rstrip("."))
                continue
            known, unread[directory] = rescued, str(error)
        job = wanted.get(known.job_id, rescued) or job_among(wanted.values(), known, stated)
        if job is None:
            different.append(
                filled("{name} differs in {what}", name=name, what="; ".join(map(str, changes(config, known))))
            )
        elif resume != "new":
            same.append((directory, known, job))
    for directory, known, job in reversed(same):  # the newest directory of this job
        store = SaveStore(directory)
        saved = store.latest(job.job_id)
        if saved is not None or store.latest() is None:
            found = _decide(directory, known, job, saved)
            found = replace(found, note=found.note + _spelled_otherwise(directory, config.run_name))
            if directory in unread:
                note = (
                    f"{found.note} Its saved steps identify the job, because its run.json is unreadable: "
                    f"{unread[directory]} "
                    f"When the run trains, run.json is written again, and the old file is kept as {UNREAD}."
                )
                return replace(found, note=note)
            return found
        different.append(filled("{name} has saved steps of a run with other settings", name=directory.name))
    if free is None:
        raise ConfigError(f"There are 999 runs called {config.run_name}. Choose another run_name.")
    if resume == "require":
        why = ". ".join(different) or filled("there is no run called {run_name}", run_name=config.run_name)
        raise ConfigError("resume is set to require, but {why}. Set resume to auto to start a new run.", why=why)
    if not config.train.learning_rate:  # not checked in the config, so that an old run.json with 0 is still readable
        raise ConfigError("learning_rate is 0, so the LoRA would not change. Set learning_rate to 1e-4.")
    note = f"New run {free.name}: {different[-1]}." if different else filled("New run {run}.", run=free.name)
    return RunDecision(free, "start", note + _spelled_otherwise(free, config.run_name), config)


def new_run_name(name: str) -> str:
    """Returns `name` in normal form C. Raises ConfigError if a run cannot have it with a suffix."""
    return safe_name(name, "run_name", _ROOM)


def _spelled_otherwise(directory: Path, run_name: str) -> str:
    """Returns a sentence if a folder's name differs only in case or normal form, which some systems ignore; else ""."""
    if directory.name.startswith(run_name):
        return ""
    return f" Its folder is called {directory.name}; on some systems, {run_name} is the same name."


def prepare_run(decision: RunDecision, config: RunConfig) -> RunConfig:
    """Create the run directory, or update its run.json with the new steps, cadence and previews. Returns its config."""
    directory = decision.directory
    config = replace(config, run_name=directory.name)
    if decision.action == "start":
        _begin(directory, config)
        return config
    try:
        read_run(directory)
    except ConfigError:
        replace_patiently(directory / "run.json", directory / UNREAD)
    else:
        if read_json(directory / "run.json") == config.to_dict():
            return config  # unchanged: on Windows, rewriting fails while another program holds it open
    atomic_write_json(directory / "run.json", config.to_dict())
    return config


def _begin(directory: Path, config: RunConfig) -> None:
    """Create the directory of a new run. An error leaves nothing behind, or the next run would be named _002."""
    if _is_unused(directory):
        for name in os.listdir(directory):
            remove_file(directory / name, directory)
        remove_empty(directory, directory.parent)
    directory.mkdir(parents=True)
    try:
        with opened_folder(directory, directory.parent) as folder:
            try:
                atomic_write_json(directory / "run.json", config.to_dict())
                write_status(directory, RunStatus(state="new", steps=config.train.steps, job_id=config.job_id))
            except BaseException:
                for name in ("run.json", "status.json"):
                    with contextlib.suppress(OSError):
                        folder.remove(name)
                raise
    except BaseException:
        remove_empty(directory, directory.parent)
        raise


def is_free(directory: Path) -> bool:
    """Returns whether a new run may have this name."""
    return not os.path.lexists(directory) or _is_unused(directory)


def _is_unused(directory: Path) -> bool:
    """Returns whether a folder is empty except for leftovers of our killed writes."""
    try:
        with opened_folder(directory, directory.parent) as folder:
            return all(map(is_partial, folder.names()))
    except OSError:
        return False


def _decide(directory: Path, known: RunConfig, wanted: RunConfig, saved: SavedStep | None) -> RunDecision:
    """Decides by the newest verified step, never by status.json, which is only a summary."""
    name, total = directory.name, wanted.train.steps
    if saved is None:
        note = filled("{run} starts from the beginning: it has no intact saved step.", run=name)
        return RunDecision(directory, "resume", note, wanted)
    if known.partner is None and known.train.preview_every_n_steps:
        wanted = replace(wanted, partner=None)  # Previews with and without a partner are not comparable.
    if known.preview and wanted.preview:
        wanted = replace(wanted, preview=replace(wanted.preview, official_of_all=known.preview.official_of_all))
    if known.partner_digest and known.partner == wanted.partner:
        wanted = replace(wanted, partner_digest=known.partner_digest)
    over = TimeLimit(directory, wanted.train).is_over
    if wanted.train.expert == "both" and not over:
        check_split(saved.expert_steps, wanted.train)
    if saved.step >= total or over:
        note = filled("{run} is finished at step {step}; nothing to train.", run=name, step=saved.step)
        return RunDecision(directory, "done", note, wanted)
    note = filled("{run} resumes after step {step} of {steps}.", run=name, step=saved.step, steps=total)
    if total != known.train.steps and wanted.train.lr_scheduler != "constant":
        note += (
            f" Its {wanted.train.lr_scheduler} learning rate now ends at step {total}, so it rises once at this point."
        )
    return RunDecision(directory, "resume", note, wanted)


@dataclass(frozen=True)
class Change:
    """A setting in which two jobs differ."""

    setting: str
    """path of the setting in the identity, such as lora.rank"""
    there: Any
    here: Any

    def __str__(self) -> str:
        if self.is_content:
            return {"data.fingerprint": "the data"}.get(self.setting, self.setting.replace("_digest", " file"))
        return f"{self.setting} ({self.there} there, {self.here} here)"

    @property
    def is_content(self) -> bool:
        """Whether the values are digests, unreadable for people."""
        return "digest" in self.setting or "fingerprint" in self.setting


def changes(config: RunConfig, known: RunConfig) -> list[Change]:
    """Returns the differences between two jobs' identities, in the order of the settings."""

    def walk(a: Any, b: Any, where: str) -> list[Change]:
        if isinstance(a, dict) and isinstance(b, dict):
            return [s for k in dict.fromkeys([*a, *b]) for s in walk(a.get(k), b.get(k), f"{where}.{k}".strip("."))]
        return [] if a == b else [Change(where, b, a)]

    return walk(config.identity(), known.identity(), "")


def directories_of(runs: Path, run_name: str) -> Iterator[Path]:
    """Yields the 999 directories for runs of this name in order, existing or not.

    An existing directory in another case or Unicode normal form keeps its own spelling.
    """
    existing: dict[str, list[str]] = {}
    for known in sorted(os.listdir(runs)) if runs.is_dir() else ():
        existing.setdefault(name_key(known), []).append(known)

    def spelled(name: str) -> str:
        alike = existing.get(name_key(name), [name])
        return name if name in alike else alike[0]

    first = spelled(run_name)
    yield runs / first
    for number in range(2, 1000):
        yield runs / spelled(f"{first}_{number:03d}")


def say_ended(directory: Path, state: str, reason: str) -> None:
    """Write the end of a run whose process was killed; an end that the process wrote itself is kept."""
    status = read_status(directory)
    if status.state == "running":
        write_status(directory, replace(status, state=state, reason=reason[:1500]))
