"""Writes the saved steps and status.json of a run, and exports the LoRA of a saved step.

A full or missing disk pauses a run instead of ending it. `train/saves.py` has the atomic commit.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from ..cache import synthetic_mark
from ..control import Control
from ..errors import RESUME, CheckpointError, Stopped, failure
from ..events import CheckpointSaved
from ..export import FOLDERS, LoraFile, LoraLook, hub_folder, look_at_lora, lora_metadata, workflow_metadata
from ..files import DISK_FULL, FileError, atomic_write_bytes, clean_partials, is_held, own_folder, size_text
from ..job.checks import check_adapters
from ..job.config import RunStatus, write_status
from ..job.remarks import still_remark
from ..load import base_words, inspect_model
from ..train import SavedStep, SaveStore, expert_setting, saved_bytes
from ..words import filled, logger
from .expert import Expert, TrainedState, prefix_of
from .experts import Experts
from .session import Session

_MENDABLE = tuple(
    getattr(errno, name)
    for name in ("ENOSPC", "EDQUOT", "EROFS", "ENOENT", "EACCES", "EPERM", "EBUSY")
    if hasattr(errno, name)
)
"""errors of a save that are temporary or that a user can fix: no space, no permission, a file held open (Windows)"""
_log = logger(__name__)
_RETRY_SAVE_S = 5.0
_PAUSES_S = (0.2, 0.8, 2.0)
"""seconds between reads of a file that a virus scanner or a folder sync holds open"""
_LEFTOVER_S = 600.0


class Saver:
    """Saves one run; only the leader writes."""

    def __init__(self, session: Session) -> None:
        self.session, self.directory, self.config = session, session.directory, session.config
        self.store = SaveStore(session.directory)
        self.saved: SavedStep | None = None
        """the newest saved step of this job"""
        self._still: set[str] = set()
        """experts with a warning in this session that their LoRA hardly changes"""

    @property
    def saved_step(self) -> int:
        return self.saved.step if self.saved is not None else 0

    def clean(self) -> None:
        """Refuse links out of the run's folder, and remove the leftovers of killed writes."""
        for name in ("saves", "samples"):
            if os.path.lexists(self.directory / name):
                clean_partials(own_folder(self.directory, name), _LEFTOVER_S, self.directory)
        clean_partials(self.directory, _LEFTOVER_S)
        self.store.clean()

    def find_saved(self) -> None:
        """Set `saved` to the newest saved step.

        Raises CheckpointError if the saved steps belong to another job, or if a newer step is unreadable now.
        """
        pauses = iter(_PAUSES_S)
        # An unreadable step may be intact; resuming from an older one would train its steps twice.
        while True:
            self.saved = self.store.latest(self.config.job_id)
            if (refused := self.store.refused(self.saved_step)) is None:
                break
            if (seconds := next(pauses, None)) is None:
                step, why = refused
                raise CheckpointError(
                    f"Saved step {step} of {self.directory.name} cannot be read ({why}): another program has a file of "
                    "it open, or it belongs to another account. Close it there or give this account the right to read "
                    f"it, then start again. To resume from an older step, move saves/step-{step:06d} away."
                )
            _wait(seconds, self.session.control)
        if self.saved is None and (other := self.store.latest()) is not None:
            raise CheckpointError(
                f"The saved step {other.step} of {self.directory.name} belongs to another job. "
                "Queue Train Wan LoRA again: it starts a new run."
            )

    def begin(self) -> None:
        """Write the status "running": the first write, which finds a full disk before minutes of loading."""
        try:
            self.write_status("running")
        except OSError as error:
            if error.errno not in DISK_FULL:
                raise
            roots, experts = self.session.roots, self.config.train.experts  # both experts have the same shape
            shape = inspect_model(self.config.of_expert(experts[0], roots).model, roots).variant.shape
            values = len(experts) * check_adapters(replace(self.config.lora, start_from=""), shape, roots)
            said = (
                "The disk of run {name} is full ({strerror}): {free} are free, and a saved step needs {need}. Free "
                "disk space."
            )
            need = size_text(saved_bytes(values, self.config.train))
            free = size_text(shutil.disk_usage(self.directory).free)
            what = filled(said, name=self.directory.name, strerror=error.strerror, free=free, need=need)
            raise FileError(failure(what, closing=RESUME)) from error

    def write_status(self, state: str, reason: str = "") -> None:
        if self.session.leads:
            steps, job_id = self.config.train.steps, self.config.job_id
            status = RunStatus(state=state, step=self.saved_step, steps=steps, reason=reason, job_id=job_id)
            write_status(self.directory, status)

    def commit(self, step: int, experts: Experts) -> SavedStep:
        """Commit a step. A full or missing disk pauses the run until it can be written.

        Raises Stopped on a stop request meanwhile.
        """
        while True:
            try:
                self.saved = self._commit(step, experts)  # does not write a step again that is committed already
                self.write_status("running")
                return self.saved
            except OSError as error:
                if error.errno not in _MENDABLE:
                    raise
                why = f"{error.strerror}{self._room(experts) if error.errno in DISK_FULL else ''}"
                if reason := self.session.control.stop_reason():
                    raise Stopped(f"{reason}; step {step} could not be saved ({why})") from error
                text = (
                    "Step {step} cannot be saved ({why}). Free disk space, or make the run's folder writable; the run "
                    "waits and loses nothing."
                )
                if is_held(error, self.store.folder):
                    text = (
                        "Step {step} cannot be saved ({why}): another program, such as a virus scanner or one that "
                        "syncs folders, has a file of it open. Close it there; the run waits and loses nothing."
                    )
                self.session.warn(filled(text, step=step, why=why))
                _wait(_RETRY_SAVE_S, self.session.control)

    def look(self, saved: SavedStep, experts: Experts) -> CheckpointSaved:
        """Returns the event of a saved step: the norm of its update per block, and names that ComfyUI would ignore.

        Warns of such names, and of a LoRA that hardly changes.
        """
        updates: dict[str, float] = {}
        modules: int | None = None
        passed_over = 0
        for expert, file in zip(experts.all, (saved.lora_file, saved.low_noise_lora_file), strict=False):
            if file is None:
                continue
            try:
                found = look_at_lora(file, expert.run.file.weights)
            except (OSError, CheckpointError) as error:  # the save was verified before, so the run continues
                _log.warning("saved step %d could not be checked: %s", saved.step, error)
                continue
            said = expert_setting(expert.name)
            before, of_whom = (f"{said} ", f"{said.title()} noise: ") if experts.both else ("", "")
            updates |= {f"{before}{block}": norm for block, norm in found.updates.items()}
            modules, passed_over = (modules or 0) + len(found.weights), passed_over + len(found.unplaced)
            still = still_remark(expert.step, _change(found, expert), expert.run.config.train)
            if still and expert.name not in self._still:
                self._still.add(expert.name)
                self.session.warn(f"{of_whom}{still}")
            if found.unplaced:
                text = (
                    f"ComfyUI would skip {len(found.unplaced)} names of saved step {saved.step}, for example "
                    f"{found.unplaced[0]}: the model has no such weight. Please report it with the name of the model."
                )
                self.session.warn(text)
        folder = f"saves/{saved.folder.name}"
        return CheckpointSaved(
            step=saved.step, folder=folder, updates=updates, modules=modules, passed_over=passed_over
        )

    def _room(self, experts: Experts) -> str:
        if experts.on_device is None:  # without a loaded model, after memory ran out, the size is unknown
            return ""
        with contextlib.suppress(OSError):
            free, need = shutil.disk_usage(self.directory).free, experts.bytes_of_a_save
            return f": {self.directory.name} has {size_text(free)} free, a saved step takes {size_text(need)}"
        return ""

    def _commit(self, step: int, experts: Experts) -> SavedStep:
        state: dict[str, Tensor] = {}
        files: dict[str, bytes] = {}
        for expert in experts.all:
            if (trained := expert.trained_state()) is not None:
                state |= {f"{prefix_of(expert)}{name}": value for name, value in trained.state.items()}
                files[expert.name] = self._lora_file(expert, trained)
        first = files.pop(experts.all[0].name)
        low_noise = next(iter(files.values()), b"")
        return self.store.commit(step, self.config.job_id, first, state, experts.progress(), low_noise_lora=low_noise)

    def _lora_file(self, expert: Expert, trained: TrainedState) -> bytes:
        """Returns the LoRA file of one model."""
        if isinstance(trained.lora, bytes):
            return trained.lora
        run, config = expert.run, expert.run.config
        file = LoraFile(
            parts=trained.lora,
            dtype=config.train.save_dtype,
            metadata=lora_metadata(
                run_name=config.run_name,
                job_id=self.config.job_id,
                step=trained.step,
                lora=config.lora,
                settings=run.settings.to_dict(),
                variant=run.variant,
                data_fingerprint=config.data.fingerprint,
                base_digest=config.base_digest,
                base=base_words(config.model, run.file),
                trigger_words=run.cache_set.trigger_words,
                pack_version=config.pack_version,
                frozen=config.model.loras,
            )
            | synthetic_mark(run.cache_set)
            | (workflow_metadata(self.directory) if self.session.embed_workflow else {}),
        )
        return file.to_bytes()


def export_lora(directory: Path, step: int | None, target: Path, *, layout: str = "") -> tuple[SavedStep, list[Path]]:
    """Copy the LoRA of a saved step (None: the latest) to `target` atomically; a pair has two files.

    `layout`: hub, or a key of `FOLDERS` (a subfolder for each expert of a pair); `target` is then a folder. Returns the
    step and the files. Raises CheckpointError without such a step, and ExportError for kinds that the layout lacks.
    """
    store = SaveStore(directory)
    saved = store.latest() if step is None else store.read(step)
    if saved is None:
        requested = "" if step is None else f" {step}"
        intact = [str(other) for other in store.steps() if step is not None and store.read(other)]
        fix = f"Choose one of: {', '.join(intact)}." if intact else "Train it first, at least to its first saved step."
        raise CheckpointError(f"Run {directory.name} has no intact saved step{requested}. {fix}")
    if layout == "hub":
        files = {target / name: data for name, data in hub_folder(directory, saved.step, saved.loras).items()}
    elif layout:
        files = {
            target / expert / name: data
            for expert, source in saved.loras.items()
            for name, data in FOLDERS[layout](source).items()
        }
    else:
        files = {target: saved.lora_file.read_bytes()}
        if (low := saved.low_noise_lora_file) is not None:
            name = target.name.replace("high_noise", "low_noise")
            own = name if name != target.name else f"{target.stem}_low_noise{target.suffix}"
            files[target.with_name(own)] = low.read_bytes()
    for name, data in files.items():
        atomic_write_bytes(name, data, target.parent if layout else None)
    return saved, list(files)


def _change(found: LoraLook, expert: Expert) -> float:
    """Returns the RMS of a LoRA's update over the weights that it adapts."""
    values = sum(math.prod(expert.run.file.weights[name].shape) for name in found.weights)
    return math.hypot(*found.updates.values()) / math.sqrt(values) if values else 0.0


def _wait(seconds: float, control: Control) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not control.stop_reason():
        time.sleep(0.1)
