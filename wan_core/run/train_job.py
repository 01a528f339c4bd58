"""Runs a job: from a run directory to trained weights. The engine as one function.

Order of a run: lock, load, resume, evaluate and preview the base, train; at every save: save, evaluate, preview.
Loading is loading.py's business, writing to disk saving.py's, and what is said of a run remarks.py's.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from ..cache import synthetic_note
from ..control import Control
from ..errors import CheckpointError, OutOfMemory, Stopped, TrainingError
from ..events import CheckpointSaved, Emit, Event, Finished, Note, Stage, StageEnded, StepDone, Suggested
from ..files import Roots, locked
from ..metrics import JsonlSink
from ..train import DeviceMeters, Group, NotFinite, TargetFunction, true_velocity
from ..train.meters import MemoryReading
from ..words import shortened
from .best_step import suggestion_of
from .config import QUEUE_DONE, RunConfig, read_run
from .full_memory import memory_named
from .loading import LoadedRun, load_run
from .open import OpenRun, open_run
from .own_runs import Measured
from .remarks import LossWatch
from .saving import Saver
from .spill import SpillWatch

__all__ = ["run_job"]


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
    target: TargetFunction = true_velocity,
) -> Finished:
    """Train the run in `directory` until its step total, a stop, or `max_steps` steps of this session (0 = all).

    Returns Finished (state done or stopped); everything lost by a kill is what came after the last committed step.
    Raises WanTrainerError for anything a user can mend. `embed_workflow`: the LoRAs carry the run's workflow.json.
    `cache_seconds`: spent on encoding for this session before it began, to be kept with the run's other times. `target`
    is replaced only by tests.
    """
    group = group or Group()
    config = read_run(directory)
    lock = locked(
        directory / ".lock", f"Run {directory.name} is being trained by another process. Stop that one first."
    )
    with lock if group.leads else contextlib.nullcontext():
        session = _Session(directory, config, roots, emit, control, group, target, embed_workflow)
        with session, session.memory_named():
            return session.train(max_steps, require_state, cache_seconds)


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
    ) -> None:
        self.directory, self.config, self.roots = directory, config, roots
        self.control, self.group, self.target = control, group, target
        self._sink = JsonlSink(directory / "metrics.jsonl") if group.leads else None
        self._emit_out = emit
        self.saver = Saver(
            directory, config, emit=self.emit, control=control, leads=group.leads, embed_workflow=embed_workflow
        )
        self._owes_save = self._owes_preview = False
        """due since a step that was not finite"""
        self._losses = LossWatch(directory)
        self._owes_suggestion = False
        """evaluated since the last one"""
        self._open: OpenRun | None = None
        """from the header of its base file on"""
        self._meters: DeviceMeters | None = None
        """from the end of loading on"""
        self._measured: Measured | None = None
        """from there on too, where something was predicted"""
        self._spill: SpillWatch | None = None

    def __enter__(self) -> _Session:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        try:
            if error is not None and not isinstance(error, Stopped):
                with contextlib.suppress(OSError):  # the error that ended the run says more than a full disk
                    self.saver.write_status("failed", shortened(str(error), 1000))
        finally:
            if self._sink is not None:
                self._sink.close()

    def emit(self, event: Event) -> None:
        if self._sink is not None:
            self._sink(event)
        self._emit_out(event)
        if self._measured is not None:
            self._measured.hear(event)
        if isinstance(event, StepDone) and self._spill is not None and (said := self._spill.remark(event)):
            self.emit(Note(text=said, level="warning"))

    def memory_named(self) -> contextlib.AbstractContextManager[None]:
        """Inside, memory that runs out becomes a sentence with what helps this run."""
        return memory_named(self.config, stored_small=self._is_stored_small)

    def _is_stored_small(self) -> bool:
        return self._open is not None and self._open.file.quantization != "none"

    @contextlib.contextmanager
    def _timed(self, stage: str, step: int) -> Iterator[None]:
        """Count what is inside to `stage`, after `step` steps: how long it took and what it held is kept, however it
        ends."""
        began = time.monotonic()
        self._end_phase()
        self.emit(Stage(stage=stage))
        try:
            yield
        finally:
            seconds = time.monotonic() - began
            self.emit(StageEnded(stage=stage, seconds=seconds, step=step, memory=self._end_phase(stage)))

    def _end_phase(self, stage: str = "") -> MemoryReading:
        reading = self._meters.end_phase() if self._meters is not None else {}
        return self._measured.predicted_beside(stage, reading) if self._measured is not None else reading

    def train(self, max_steps: int, require_state: bool, cache_seconds: float = 0.0) -> Finished:
        saver, total = self.saver, self.config.train.steps
        if self.group.leads:
            saver.clean()
        saver.find_saved()
        if saver.saved is None and require_state:
            raise CheckpointError(
                f"Run {self.directory.name} has no saved step to resume. Use train instead of resume."
            )
        if saver.saved is not None and saver.saved.step >= total:
            return self._finish("done", saver.saved.step)
        saver.begin(self.roots)
        if cache_seconds > 0:
            self.emit(StageEnded(stage="cache", seconds=cache_seconds, step=saver.saved_step))
        try:
            with self._timed("load", saver.saved_step):
                self._load()
            if self.trainer.on_gpu:
                self._rehearse()
        except Stopped as stop:
            return self._finish("stopped", saver.saved_step, stop.reason)
        goal = min(total, self.trainer.step + max_steps) if max_steps else total
        try:
            self._before_first_step()
            self.trainer.run(goal, self._between_steps)
        except Stopped as stop:
            reason = self._save_before_stopping(stop.reason)
            if saver.saved_step == total:  # told to stop while the last clip was rendered: nothing is left to train
                return self._finish("done", total)
            return self._finish("stopped", saver.saved_step, reason)
        except NotFinite as error:
            raise self._what_stands(error) from error
        except OutOfMemory:  # between two steps, after a preview
            self._save_before_stopping("")
            raise
        reason = self._save_before_stopping(f"{max_steps} {QUEUE_DONE}")
        if saver.saved_step < total and self.group.leads:
            return self._finish("stopped", saver.saved_step, reason)
        return self._finish("done" if self.trainer.step == total else "stopped", self.trainer.step)

    def _load(self) -> None:
        self._open = open_run(self.directory, self.roots, self.config)
        self.loaded: LoadedRun = load_run(
            self._open,
            self.saver.store,
            self.saver.saved,
            emit=self.emit,
            control=self.control,
            group=self.group,
            target=self.target,
        )
        self.trainer, self.previewer = self.loaded.trainer, self.loaded.previewer
        self._meters, self._measured = self.trainer.meters, self.loaded.measured
        self._spill = SpillWatch.on(self._meters.devices)

    def _rehearse(self) -> None:
        """Takes a step of the largest clips that changes nothing: its peak is a step's, its time a part of loading."""
        began = time.monotonic()
        self.trainer.rehearse()
        assert self._meters is not None
        self._meters.read()
        self.emit(StageEnded(stage="load", seconds=time.monotonic() - began, step=self.trainer.step))

    def _before_first_step(self) -> None:
        if self.trainer.step == 0 and self.group.leads:
            with self._stops_at_the_border():
                self._evaluate()
                if self.previewer is not None:
                    with self._timed("sample", 0), self.trainer.judged():
                        self.previewer.render(0, "step-000000")
        self.emit(Stage(stage="train", done=self.trainer.step, total=self.config.train.steps))

    def _between_steps(self, step: int) -> None:
        """Save, evaluate and preview where they are due; a save comes before anything that could fail.

        While steps are not finite nothing is known of the weights, so all of it waits for the next one that is.
        """
        train = self.config.train
        if not self.group.leads:
            return
        self._owes_save |= step % train.save_every_n_steps == 0
        self._owes_preview |= bool(train.preview_every_n_steps) and step % train.preview_every_n_steps == 0
        if self.trainer.bad_in_a_row:
            return
        wants_save, wants_preview = self.control.take("save"), self.control.take("sample")
        last = step == train.steps
        due = last or self._owes_save
        with self._stops_at_the_border():
            if due or wants_save:
                self._save()
            if due:
                self._owes_save = False
            if due or (train.eval_every_n_steps and step % train.eval_every_n_steps == 0):
                self._evaluate()
            if self.previewer is not None and (wants_preview or last or self._owes_preview):
                self._owes_preview = False
                with self._timed("sample", step), self.trainer.judged():
                    self.previewer.render(step, f"step-{step:06d}")
            self._suggest(step)
        if due or wants_preview:
            self.emit(Stage(stage="train", done=step, total=train.steps))

    def _stops_at_the_border(self) -> contextlib.AbstractContextManager[object]:
        """Around what a leader of several ranks does while the others wait.

        Told to stop, it gives up what it does, and all stop together before the next step, where the reason is shared.
        """
        return contextlib.nullcontext() if self.group.world == 1 else contextlib.suppress(Stopped)

    def _evaluate(self) -> None:
        if not self.trainer.evaluates:
            return
        with self._timed("evaluate", self.trainer.step):
            evaluated = self.trainer.evaluate()
        if evaluated is not None:
            self.emit(evaluated)
            self._owes_suggestion = evaluated.step > 0
            if remark := self._losses.remark(evaluated):
                self.emit(Note(text=remark, level="warning"))

    def _suggest(self, step: int) -> None:
        """Says which saved step the figures suggest, after evaluation and previews have given them."""
        if self._owes_suggestion:
            self._owes_suggestion = False
            found = suggestion_of(self.directory, synthetic=bool(synthetic_note(self.loaded.run.cache_set)))
            self.emit(Suggested(step=step, best=found.step, why=found.why, overfits_from=found.overfits_from))

    def _save(self) -> None:
        """Commit the last good step; Stopped when the disk is full and a stop is asked for meanwhile."""
        step = self.trainer.good_step
        if not self.group.leads or step == 0 or step == self.saver.saved_step:
            return
        with self._timed("save", step):
            folder = self.saver.commit(step, self.loaded).folder.name
        self.emit(CheckpointSaved(step=step, folder=f"saves/{folder}"))
        self._keep_measured()

    def _keep_measured(self) -> None:
        """Lets the next plan on this machine follow what the run took, unless it is not run as it was planned."""
        if self._measured is not None and self.group.leads and not self.trainer.gave_way:
            self._measured.keep(self.roots)

    def _save_before_stopping(self, reason: str) -> str:
        """Returns why the run stops.

        Where the disk has no room for what it did since the last save, the reason says so.
        """
        try:
            self._save()
        except Stopped as unsaved:
            return unsaved.reason
        return reason

    def _what_stands(self, error: NotFinite) -> TrainingError:
        """Returns why the run ended, and what of it is good.

        A saved step counts as good once a step after it was finite.
        """
        if self.group.leads:
            self.saver.store.suspect(self.trainer.good_step)
        good = self.saver.store.latest(self.config.job_id)
        stands = f"Saved step {good.step} is the last good one." if good else "No good step was saved."
        fix = "set base_precision to bf16 or fp32 in LoadWanModel; unchanged, it would end here again."
        if self.trainer.good_step:
            fix = f"Lower learning_rate, or {fix}"
        else:
            start = "start from another LoRA, or " if self.config.lora.start_from else ""
            fix = f"It never had a finite one: {start}{fix}"
        return TrainingError(f"{error} {stands} {fix}")

    def _finish(self, state: str, step: int, reason: str = "") -> Finished:
        self._keep_measured()
        with contextlib.suppress(OSError):  # a full disk: what counts is saved, and says the same
            self.saver.write_status(state, reason)
        self.emit(Stage(stage="done", done=step, total=self.config.train.steps))
        finished = Finished(state=state, step=step, result={"reason": reason, "saved_step": self.saver.saved_step})
        self.emit(finished)
        return finished
