"""Runs a job: from a run directory to trained weights. The engine as one function.

Order of a run: lock, load, resume, evaluate and preview the base, train; at every save: save, evaluate, preview.
Loading is loading.py's business, writing to disk saving.py's, and what is said of a run remarks.py's.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from ..cache import nothing_shown_reason, synthetic_note
from ..control import Control
from ..errors import CheckpointError, OutOfMemory, Stopped
from ..events import Emit, Finished, Marked, Note, Stage, StageEnded
from ..files import Hold, LockLost, Roots, locked
from ..job.closing import closing_of
from ..job.config import RunConfig, read_run, read_status
from ..job.length import TimedControl, TimeLimit
from ..job.open import OpenRun, open_experts
from ..job.remarks import LOCKLESS, disk_remark, rate_remark, set_aside_note, start_note, what_stands
from ..plan.partner import pair_of_previews
from ..train import Group, NotFinite, TargetFunction, check_split, true_velocity
from ..train.meters import MemoryReading
from ..words import filled, shortened
from .between_steps import BetweenSteps
from .event_sinks import EventSinks
from .expert import Expert
from .experts import Experts
from .full_memory import memory_named
from .loading import preview_inputs
from .preview_loras import check_preview_loras
from .remaining import Remaining
from .saving import Saver
from .showing import begin_showing
from .spill import SpillWatch


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
    cache_seconds: float = 0.0,
    start_seconds: float = 0.0,
    profile_steps: int = 0,
    target: TargetFunction = true_velocity,
) -> Finished:
    """Train the run in `directory` until its step total, a stop, or `max_steps` steps of this session (0 = all).

    Returns Finished (state done or stopped); everything lost by a kill is what came after the last committed step.
    Raises WanTrainerError for anything a user can mend. `embed_workflow`: the LoRAs carry the run's workflow.json.
    `cache_seconds`: spent on encoding for this session before it began, `start_seconds` on the start of its process,
    both to be kept with the run's other times.
    `profile_steps`: so many steps of this session are profiled, from its second on. `target` is replaced only by tests.
    """
    group = group or Group()
    config = read_run(directory)
    lock = locked(
        directory / ".lock", f"Run {directory.name} is being trained by another process. Stop that one first."
    )
    with lock if group.leads else contextlib.nullcontext() as hold:
        session = _Session(directory, config, roots, emit, control, group, target, embed_workflow, profile_steps, hold)
        with session, session.memory_named():
            return session.train(max_steps, require_state, {"cache": cache_seconds, "start": start_seconds})


def judge_job(directory: Path, roots: Roots, *, emit: Emit, control: Control) -> Finished:
    """Evaluate and preview the newest saved step of a run as training does when it saves one. Nothing is trained.

    Raises CheckpointError where nothing is saved, Stopped, and what `run_job` raises while it loads.
    """
    config = read_run(directory)
    busy = f"Run {directory.name} is being trained by another process. Stop that one first."
    with locked(directory / ".lock", busy) as hold:
        session = _Session(directory, config, roots, emit, control, Group(), true_velocity, False, 0, hold)
        with session, session.memory_named():
            return session.judge()


class _Session:
    """One worker's work on one run."""

    def __init__(
        self,
        directory: Path,
        config: RunConfig,
        roots: Roots,
        emit: Emit,
        control: Control,
        group: Group,
        target: TargetFunction,
        embed_workflow: bool,
        profile_steps: int,
        hold: Hold | None,
    ) -> None:
        self.directory, self.config, self.roots = directory, config, roots
        self._limit = TimeLimit(directory, config.train)
        self.control, self.group, self.target = TimedControl(control, self._limit, hold), group, target
        self._profile_steps, self._hold = profile_steps, hold
        self._sinks = EventSinks(directory, emit, self._limit, Remaining(config.train), leads=group.leads)
        self.emit = self._sinks.emit
        self.saver = Saver(
            directory, config, emit=self.emit, control=control, leads=group.leads, embed_workflow=embed_workflow
        )
        self._open: tuple[OpenRun, ...] = ()
        """from the headers of its base files on"""
        self._experts: Experts | None = None
        """from the checks of its files on"""
        self._between: BetweenSteps | None = None
        """from when they are loaded on"""

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        try:
            if error is not None and not isinstance(error, (Stopped, LockLost)):
                with contextlib.suppress(OSError):  # the error that ended the run says more than a full disk
                    self.saver.write_status("failed", shortened(str(error), 1000))
        finally:
            self._sinks.close()

    def memory_named(self) -> contextlib.AbstractContextManager[None]:
        """Inside, memory that runs out becomes a sentence with what helps this run."""
        return memory_named(
            self.config,
            stored_small=lambda: any(run.file.quantization != "none" for run in self._open),
            predicted=lambda: self._at_work.planned_bytes if self._at_work is not None else None,
        )

    @contextlib.contextmanager
    def _timed(self, stage: str, step: int) -> Iterator[None]:
        """Count what is inside to `stage`, after `step` steps: its time and memory are kept, however it ends."""
        began = time.monotonic()
        self._end_phase()
        self.emit(Stage(stage=stage))
        try:
            yield
        finally:
            seconds = time.monotonic() - began
            self.emit(StageEnded(stage=stage, seconds=seconds, step=step, memory=self._end_phase(stage)))

    def _end_phase(self, stage: str = "") -> MemoryReading:
        return self._at_work.end_phase(stage) if self._at_work is not None else {}

    @property
    def _at_work(self) -> Expert | None:
        return self._experts.at_work if self._experts is not None else None

    @property
    def experts(self) -> Experts:
        assert self._experts is not None, "nothing is loaded yet"
        return self._experts

    @property
    def between(self) -> BetweenSteps:
        assert self._between is not None, "nothing is loaded yet"
        return self._between

    def train(self, max_steps: int, require_state: bool, before: Mapping[str, float]) -> Finished:
        """`before`: seconds by stage that were spent on this session before it began."""
        saver, total = self.saver, self.config.train.steps
        if self.group.leads:
            saver.clean()
        saver.find_saved()
        if saver.saved is None and require_state:
            raise CheckpointError(
                f"Run {self.directory.name} has no saved step to resume. Use train instead of resume."
            )
        if saver.saved is not None and self.config.train.expert == "both" and not self._limit.is_over:
            check_split(saver.saved.expert_steps, self.config.train)
        if saver.saved is not None and (saver.saved.step >= total or self._limit.is_over):
            return self._finish("done", saver.saved.step, "" if saver.saved.step >= total else self._limit.reason)
        saver.begin(self.roots)
        if self._hold is not None and not self._hold.by_system:
            self.emit(Note(text=LOCKLESS))
        for stage, seconds in before.items():
            if seconds > 0:
                self.emit(StageEnded(stage=stage, seconds=seconds, step=saver.saved_step))
        try:
            self._load()
        except Stopped as stop:
            return self._finish("stopped", saver.saved_step, stop.reason)
        goal = min(total, self.experts.step + max_steps) if max_steps else total
        try:
            self.experts.train(goal, self.between.before_turn, self.between.after, self.between.shows)
        except Stopped as stop:
            reason = self._save_before_stopping(stop.reason)
            if saver.saved_step == total:  # told to stop while the last clip was rendered: nothing is left to train
                return self._finish("done", total)
            if reason == self._limit.reason:
                return self._finish("done", self.experts.step, reason)
            return self._finish("stopped", saver.saved_step, reason)
        except LockLost:
            raise  # nothing of ours is written beside what the other process saves
        except NotFinite as error:
            if self.group.leads:
                saver.store.suspect(self._sinks.good_until(self.experts.good_step))
            raise what_stands(error, self.experts.good_step, saver.store, self.config) from error
        except Exception as error:
            # Between two steps, after a preview: the model does not come back, and what it learnt is here.
            if isinstance(error, OutOfMemory) or self._at_work is None:
                self._save_before_stopping("")
            raise
        reason = self._save_before_stopping(filled("{n} steps of this queue are done", n=max_steps))
        if saver.saved_step < total and self.group.leads:
            return self._finish("stopped", saver.saved_step, reason)
        return self._finish("done" if self.experts.step == total else "stopped", self.experts.step)

    def judge(self) -> Finished:
        self.saver.clean()
        self.saver.find_saved()
        if self.saver.saved is None:
            raise CheckpointError(f"Run {self.directory.name} has no saved step. Train it first.")
        known = read_status(self.directory)
        self._load()
        self.between.judge(self.saver.saved)
        return self._finish(known.state, self.saver.saved_step, known.reason)

    def _load(self) -> None:
        """Open, check and plan everything there is to train, and load what comes first.

        Raises what `Experts` refuses, and Stopped when a stop is asked for while the weights are read.
        """
        self._open, saved = open_experts(self.directory, self.roots, self.config), self.saver.saved
        self._sinks.warn(synthetic_note(self._open[0].cache_set))
        pair: tuple[OpenRun, ...] = ()
        if self.group.leads and len(self._open) == 1:
            pair = pair_of_previews(self._open[0], self._sinks.warn)
        previews = preview_inputs((pair or self._open)[0]) if self.group.leads else None
        check_preview_loras(pair or self._open, previews.config.loras if previews is not None else ())
        partner = next((run for run in pair if not run.trained), None)
        self._experts = Experts(
            self._open,
            self.config,
            saved,
            emit=self.emit,
            control=self.control,
            group=self.group,
            target=self.target,
            timed=self._timed,
            partner=partner,
        )
        self._sinks.experts = self._experts
        self._experts.begin()
        self._sinks.spill = SpillWatch.on(self._experts.trainer.meters.devices)
        if saved is not None:
            self.emit(
                Note(
                    text=filled(
                        "Continues after saved step {step} of {steps}.", step=saved.step, steps=self.config.train.steps
                    )
                )
            )
        elif note := start_note(self.config, self.roots):
            self.emit(Note(text=note))
        if self.group.leads and (note := set_aside_note(self.saver.store)):
            self.emit(Note(text=note))
        self._between = BetweenSteps(
            self.directory,
            self.config,
            self.roots,
            self._experts,
            self.saver,
            nothing_to_learn=nothing_shown_reason(self._open[0].cache_set, self._open[0].cache.entries),
            emit=self.emit,
            control=self.control,
            group=self.group,
            timed=self._timed,
            limit=self._limit,
            profile_steps=self._profile_steps,
        )
        if previews is not None:
            self._between.showing = begin_showing(
                self._experts, previews, partner, emit=self.emit, warn=self._sinks.warn, control=self.control
            )
        if remark := rate_remark(self.config.train, full_size=self._open[0].file.variant.is_full_size):
            self.emit(Marked(step=self._experts.step, kind="learning rate", text=remark))
            self._sinks.warn(remark)
        self._sinks.warn(disk_remark(self.directory, self._experts.bytes_of_a_save))

    def _save_before_stopping(self, reason: str) -> str:
        """Returns why the run stops.

        Where the disk has no room for what it did since the last save, the reason says so.
        """
        try:
            self.between.save()
        except Stopped as unsaved:
            return unsaved.reason
        return reason

    def _finish(self, state: str, step: int, reason: str = "") -> Finished:
        if self._at_work is not None and self.group.leads:
            self._at_work.keep_measured(self.roots)
        if self._between is not None:
            self._between.profiler.end(step)
        with contextlib.suppress(OSError):  # a full disk: what counts is saved, and says the same
            self.saver.write_status(state, reason)
        self.emit(Stage(stage="done", done=step, total=self.config.train.steps))
        said = {"reason": reason, "saved_step": self.saver.saved_step}
        variant = self._open[0].variant.name if self._open else ""
        closing = closing_of(self.saver.saved, self.config, variant)
        finished = Finished(state=state, step=step, result=said | closing)
        self.emit(finished)
        return finished
