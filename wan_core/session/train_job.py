"""Trains a run from its directory: lock, find the newest saved step, load, train (`training.py`), write the status."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..cache import nothing_shown_reason, synthetic_note
from ..control import Control
from ..errors import CheckpointError, Stopped
from ..events import Emit, Finished, Marked, Stage, StageEnded
from ..files import Roots, locked
from ..job.config import read_run
from ..job.length import TimeLimit
from ..job.open import OpenRun, open_experts
from ..job.outcome import result_of
from ..job.partner import pair_of_previews
from ..job.remarks import (
    LOCKLESS,
    disk_remark,
    not_finite_error,
    rate_remark,
    routes_remark,
    set_aside_note,
    start_note,
)
from ..metrics import RankFile, forget_ranks
from ..train import Group, NotFinite, check_split
from ..train.meters import device_states
from ..words import filled, shortened
from .event_sinks import EventSinks
from .expert import Expert
from .experts import Experts
from .full_memory import memory_named, memory_ran_out
from .preview_loras import check_preview_kernel, check_preview_loras
from .previews import make_previews, preview_inputs
from .saving import Saver
from .session import Session, TimedControl
from .spill import SpillWatch
from .training import Training


def run_job(
    directory: Path,
    roots: Roots,
    *,
    emit: Emit,
    control: Control,
    group: Group | None = None,
    max_steps: int = 0,
    require_state: bool = False,
    embed_workflow: bool = False,
    before: Mapping[str, float] | None = None,
    profile_steps: int = 0,
) -> Finished:
    """Train the run in `directory` until its last step, a stop, or `max_steps` steps of this session (0 = no limit).

    A kill loses only the steps after the last saved step. Raises WanTrainerError for anything a user can fix; any error
    sets the run's status to "failed".
    `embed_workflow`: LoRA files contain the run's workflow.json. `before`: seconds by stage (cache, start) spent before
    the session. `profile_steps`: number of steps to profile; 0: as in the settings.
    """
    config, group = read_run(directory), group or Group()
    group.parts = config.model.placement.parts if group.world > 1 else 1
    busy = f"Run {directory.name} is being trained by another process. Stop that one first."
    lock = locked(directory / ".lock", busy) if group.leads else contextlib.nullcontext()
    with lock as has_locks:
        limit = TimeLimit(directory, config.train)
        sinks = EventSinks(directory, emit, limit, config.train, leads=group.leads)
        session = Session(
            directory=directory,
            config=config,
            roots=roots,
            emit=sinks.emit,
            control=TimedControl(control, limit),
            group=group,
            embed_workflow=embed_workflow,
            timed=sinks.timed,
        )
        worker = _Worker(session, sinks, limit)
        try:
            if has_locks is False:
                session.note(LOCKLESS)
            with worker.memory_named():
                return worker.train(max_steps, require_state, before or {}, profile_steps)
        except Stopped:
            raise
        except BaseException as error:
            # The error that ended the run is more useful than the error of a full disk.
            with contextlib.suppress(OSError):
                worker.saver.write_status("failed", shortened(str(error), 1000))
            raise
        finally:
            worker.close()
            sinks.close()


class _Worker:
    """One worker: finds the saved step, loads and trains the models, and writes the end."""

    def __init__(self, session: Session, sinks: EventSinks, limit: TimeLimit) -> None:
        self.session, self.sinks, self.limit = session, sinks, limit
        self.saver = Saver(session)
        # `_load` sets these one by one, so that an error report can use those that are set.
        self._open: tuple[OpenRun, ...] = ()
        self._experts: Experts | None = None
        self._training: Training | None = None
        self._devices: RankFile | None = None

    def close(self) -> None:
        if self._devices is not None:
            self._devices.close()

    def memory_named(self) -> contextlib.AbstractContextManager[None]:
        """Inside, out-of-memory errors become a sentence with the remedies of this run."""
        return memory_named(
            self.session.config,
            stored_small=lambda: any(run.file.quantization != "none" for run in self._open),
            predicted=lambda: self._on_device.planned_bytes if self._on_device is not None else None,
        )

    @property
    def _on_device(self) -> Expert | None:
        return self._experts.on_device if self._experts is not None else None

    def train(self, max_steps: int, require_state: bool, before: Mapping[str, float], profile_steps: int) -> Finished:
        """Train, save, and write how it ended."""
        saver, total = self.saver, self.session.config.train.steps
        if (finished := self._found_finished(require_state)) is not None:
            return finished
        saver.begin()
        for stage, seconds in before.items():
            if seconds > 0:
                self.session.emit(StageEnded(stage=stage, seconds=seconds, step=saver.saved_step))
        try:
            training = self._load(profile_steps)
        except Stopped as stop:
            return self._finish("stopped", saver.saved_step, stop.reason)
        goal = min(total, training.experts.step + max_steps) if max_steps else total
        try:
            training.run(goal)
        except Stopped as stop:
            return self._stopped(training, stop.reason)
        except NotFinite as error:
            good = training.experts.good_step
            if self.session.leads:
                saver.store.suspect(self.sinks.good_until(good))
            raise not_finite_error(error, good, saver.store, self.session.config) from error
        except Exception as error:
            # A model that was offloaded for a preview has its trained state in host memory, which can be saved.
            if memory_ran_out(error) or self._on_device is None:
                self._save_before_stopping(training, "")
            raise
        reason = self._save_before_stopping(training, filled("{n} steps of this Run are done", n=max_steps))
        if saver.saved_step < total and self.session.leads:
            return self._finish("stopped", saver.saved_step, reason)
        return self._finish("done" if training.experts.step == total else "stopped", training.experts.step)

    def _found_finished(self, require_state: bool) -> Finished | None:
        """Find the newest saved step; returns the end of a run that is complete with it, else None.

        Raises CheckpointError without one where `require_state`.
        """
        saver, train = self.saver, self.session.config.train
        if self.session.leads:
            saver.clean()
        saver.find_saved()
        if saver.saved is None:
            if require_state:
                raise CheckpointError(
                    f"Run {self.session.directory.name} has no saved step to resume. Use train instead of resume."
                )
            return None
        over = self.limit.is_over
        if train.expert == "both" and not over:
            check_split(saver.saved.expert_steps, train)
        if saver.saved_step >= train.steps:
            return self._finish("done", saver.saved_step)
        return self._finish("done", saver.saved_step, self.limit.reason) if over else None

    def _load(self, profile_steps: int = 0) -> Training:
        """Open, check and plan all models, and load the first one.

        Raises what `Experts` does, and Stopped on a stop request while weights are read.
        """
        session, config, saved = self.session, self.session.config, self.saver.saved
        self._open = open_experts(session.directory, session.roots, config)
        first = self._open[0]
        session.warn(synthetic_note(first.cache_set))
        pair: tuple[OpenRun, ...] = ()
        if session.leads and len(self._open) == 1:
            pair = pair_of_previews(first, session.warn)
        previews = preview_inputs((pair or self._open)[0]) if session.leads else None
        check_preview_loras(pair or self._open, previews.config.loras if previews is not None else ())
        if previews is not None:
            check_preview_kernel(pair or self._open, previews.config.attention)
        partner = next((run for run in pair if not run.trained), None)
        experts = self._experts = Experts(session, self._open, saved, partner)
        self.sinks.on_device = lambda: experts.on_device
        turn = experts.next_turn()
        experts.load(turn[0] if turn is not None else experts.all[0])
        self._watch(experts.current.trainer.meters.devices)
        if saved is not None:
            steps = config.train.steps
            session.note(filled("Resumes after saved step {step} of {steps}.", step=saved.step, steps=steps))
        else:
            session.note(start_note(config, session.roots))
        if session.leads:
            session.note(set_aside_note(self.saver.store))
        training = self._training = Training(
            session,
            experts,
            self.saver,
            self.limit,
            previews=make_previews(session, experts, previews),
            nothing_to_learn=nothing_shown_reason(first.cache_set, first.cache.entries),
            profile_steps=profile_steps,
        )
        if remark := rate_remark(config.train, full_size=first.file.variant.is_full_size):
            session.emit(Marked(step=experts.step, kind="learning rate", text=remark))
            session.warn(remark)
        session.warn(routes_remark(config.train))
        session.warn(disk_remark(session.directory, experts.bytes_of_a_save))
        return training

    def _watch(self, devices: Sequence[str]) -> None:
        """Watch the devices of this rank for spill; with several ranks or devices, record their state in a file."""
        session = self.session
        several = session.group.world if session.group.world > 1 or len(devices) > 1 else 0
        self.sinks.spill = SpillWatch.on(devices)
        if session.leads:
            forget_ranks(session.directory, several)
        if several:
            self._devices = RankFile(session.directory, session.group.rank, lambda: device_states(devices))

    def _stopped(self, training: Training, reason: str) -> Finished:
        """Save and end a run after a stop between two steps."""
        reason, saved = self._save_before_stopping(training, reason), self.saver.saved_step
        if saved == self.session.config.train.steps:  # stopped while the last preview was rendered
            return self._finish("done", saved)
        if reason == self.limit.reason:
            return self._finish("done", training.experts.step, reason)
        return self._finish("stopped", saved, reason)

    def _save_before_stopping(self, training: Training, reason: str) -> str:
        """Saves; returns why the run stops, with the disk's error if that save failed."""
        try:
            training.save()
        except Stopped as unsaved:
            return unsaved.reason
        return reason

    def _finish(self, state: str, step: int, reason: str = "") -> Finished:
        session, saver = self.session, self.saver
        if self._on_device is not None and session.leads:
            self._on_device.keep_measured()
        if self._training is not None:
            self._training.profiler.end(step)
        # If the disk is full, the next session finds the last step in the saved steps.
        with contextlib.suppress(OSError):
            saver.write_status(state, reason)
        session.emit(Stage(stage="done", done=step, total=session.config.train.steps))
        variant = self._open[0].variant.name if self._open else ""
        result = {"reason": reason, "saved_step": saver.saved_step} | result_of(saver.saved, session.config, variant)
        finished = Finished(state=state, step=step, result=result)
        session.emit(finished)
        return finished
