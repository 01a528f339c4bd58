"""Runs a job: from a run directory to trained weights. The engine as one function.

Order of a run: lock, load, resume, evaluate and preview the base, train; at every save: save, evaluate, preview.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..cache import Batches, LatentCache, pad_text, synthetic_mark, synthetic_note
from ..control import Control
from ..dataset import condition_kind
from ..errors import CheckpointError, OutOfMemory, Stopped, TrainingError
from ..events import CheckpointSaved, Emit, Evaluated, Event, Finished, Note, Stage, StageEnded
from ..export import LoraFile, lora_metadata, workflow_metadata
from ..files import DISK_FULL, FileError, Roots, atomic_write, clean_partials, locked, own_folder, size_text
from ..load import WanFile, attention_kernels, inspect_model, materialize
from ..lora import LoraWeights
from ..metrics import JsonlSink, eval_losses
from ..model import WanTransformer
from ..precision import quantized_by
from ..sampler import SampleConfig
from ..train import (
    DeviceMeters,
    Group,
    NotFinite,
    Previewer,
    PreviewInputs,
    SavedStep,
    SaveStore,
    TargetFunction,
    Trainer,
    largest_step,
    predicted_peaks,
    read_preview_inputs,
    true_velocity,
)
from ..train.meters import MemoryReading
from ..words import logger, shortened
from .checks import (
    check_adapters,
    check_files,
    check_quantized_alike,
    first_frame_share,
    preview_note,
    remarks_on_base,
    with_expert,
    with_model_values,
)
from .config import QUEUE_DONE, RunConfig, RunStatus, read_run, write_status
from .full_memory import memory_named

__all__ = ["export_lora", "run_job"]

_log = logger(__name__)
_MENDABLE = tuple(
    getattr(errno, name)
    for name in ("ENOSPC", "EDQUOT", "EROFS", "ENOENT", "EACCES", "EPERM", "EBUSY")
    if hasattr(errno, name)
)
"""Errors of a save that pass, or that a user can mend: no room, no rights, a file held open (Windows)."""
_RETRY_SAVE_S = 5.0
_LEFTOVER_S = 600.0
_DIVERGED = 1.5


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
        self._embed_workflow = embed_workflow
        self._stored = "none"
        self.control, self.group, self.target = control, group, target
        self._sink = JsonlSink(directory / "metrics.jsonl") if group.leads else None
        self._emit_out = emit
        self.store = SaveStore(directory)
        self.saved: SavedStep | None = None
        self._owes_save = self._owes_preview = False
        """due since a step that was not finite"""
        self._base_loss: float | None = None
        self._said_diverging = False
        self._meters: DeviceMeters | None = None
        """from the end of loading on"""

    def __enter__(self) -> _Session:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        try:
            if error is not None and not isinstance(error, Stopped):
                with contextlib.suppress(OSError):  # the error that ended the run says more than a full disk
                    self._status("failed", shortened(str(error), 1000))
        finally:
            if self._sink is not None:
                self._sink.close()

    def emit(self, event: Event) -> None:
        if self._sink is not None:
            self._sink(event)
        self._emit_out(event)

    @contextlib.contextmanager
    def _timed(self, stage: str, step: int) -> Iterator[None]:
        """What is inside belongs to `stage`, after `step` steps; how long it took and what it held is kept, however it
        ends."""
        began = time.monotonic()
        self._end_phase()
        self.emit(Stage(stage=stage))
        try:
            yield
        finally:
            seconds = time.monotonic() - began
            self.emit(StageEnded(stage=stage, seconds=seconds, step=step, memory=self._end_phase()))

    def _end_phase(self) -> MemoryReading:
        return self._meters.end_phase() if self._meters is not None else {}

    def train(self, max_steps: int, require_state: bool, cache_seconds: float = 0.0) -> Finished:
        total = self.config.train.steps
        if self.group.leads:
            self._clean()
        self.saved = self.store.latest(self.config.job_id)
        if self.saved is None and (other := self.store.latest()) is not None:
            raise CheckpointError(
                f"The saved step {other.step} of {self.directory.name} belongs to another job. "
                "Queue TrainLoRA again: it will start a new folder."
            )
        if self.saved is None and require_state:
            raise CheckpointError(
                f"Run {self.directory.name} has no saved step to resume. Use train instead of resume."
            )
        if self.saved is not None and self.saved.step >= total:
            return self._finish("done", self.saved.step)
        self._begin()
        if cache_seconds > 0:
            self.emit(StageEnded(stage="cache", seconds=cache_seconds, step=self._saved_step()))
        try:
            with self._timed("load", self._saved_step()):
                self._load()
        except Stopped as stop:
            return self._finish("stopped", self._saved_step(), stop.reason)
        goal = min(total, self.trainer.step + max_steps) if max_steps else total
        try:
            self._before_first_step()
            self.trainer.run(goal, self._between_steps)
        except Stopped as stop:
            reason = self._save_before_stopping(stop.reason)
            if self._saved_step() == total:  # told to stop while the last clip was rendered: nothing is left to train
                return self._finish("done", total)
            return self._finish("stopped", self._saved_step(), reason)
        except NotFinite as error:
            raise self._what_stands(error) from error
        except OutOfMemory:  # between two steps, after a preview
            self._save_before_stopping("")
            raise
        reason = self._save_before_stopping(f"{max_steps} {QUEUE_DONE}")
        if self._saved_step() < total and self.group.leads:
            return self._finish("stopped", self._saved_step(), reason)
        return self._finish("done" if self.trainer.step == total else "stopped", self.trainer.step)

    def _begin(self) -> None:
        """Say that it runs: the first write, so the one that finds a full disk before minutes of loading."""
        try:
            self._status("running")
        except OSError as error:
            if error.errno not in DISK_FULL:
                raise
            need = check_adapters(
                self.config.lora, inspect_model(self.config.model, self.roots).variant.shape, self.roots
            )
            free = shutil.disk_usage(self.directory).free
            raise FileError(
                f"There is no room for run {self.directory.name} ({error.strerror}): its disk has {size_text(free)} "
                f"free, and a saved step takes {size_text(need)}. Make room, then start again; saved steps are kept."
            ) from error

    def _clean(self) -> None:
        """What a stranger's folder could write elsewhere is refused, and what killed writes left is removed."""
        for name in ("saves", "samples"):
            if os.path.lexists(self.directory / name):
                clean_partials(own_folder(self.directory, name), _LEFTOVER_S)
        clean_partials(self.directory, _LEFTOVER_S)
        self.store.clean()

    def _what_stands(self, error: NotFinite) -> TrainingError:
        """Why the run ended, and what of it is good: a saved step counts as good once a step after it was finite."""
        if self.group.leads:
            self.store.suspect(self.trainer.good_step)
        good = self.store.latest(self.config.job_id)
        stands = f"Saved step {good.step} is the last good one." if good else "No good step was saved."
        fix = "set base_precision to bf16 or fp32 in LoadWanModel; unchanged, it would end here again."
        if self.trainer.good_step:
            fix = f"Lower learning_rate, or {fix}"
        else:
            start = "start from another LoRA, or " if self.config.lora.start_from else ""
            fix = f"It never had a finite one: {start}{fix}"
        return TrainingError(f"{error} {stands} {fix}")

    def memory_named(self) -> contextlib.AbstractContextManager[None]:
        """Inside, memory that runs out is said with what helps this run."""
        return memory_named(self.config, stored_small=lambda: self._stored not in ("none", "gguf"))

    def _load(self) -> None:
        config = self.config
        found = inspect_model(config.model, self.roots)
        self._stored = found.quantization
        self.variant = with_expert(found.variant, config.train.expert)
        self.settings = with_model_values(config.train, self.variant)
        # A resumed run holds its start LoRA already; that file may be gone.
        check_files(config, self.roots, with_start=self.saved is None)
        cache = LatentCache(self.roots.first("cache"))
        self.cache, self.cache_set = cache, cache.read_set(config.data.fingerprint)
        kind = condition_kind(self.variant.task, self.variant.shape.image_dim, self.variant.shape.condition_channels)
        self.cache_set.require_fit(self.variant.name, self.variant.latents, kind)
        if note := synthetic_note(self.cache_set):
            self.emit(Note(text=note, level="warning"))
        quantize = config.model.quantize
        self.quantized_by = None if quantize is None else quantized_by(quantize, found.compute_dtype)
        if self.saved is not None:
            check_quantized_alike(self.saved, self.quantized_by)
        self._name_attention(found)
        for remark in remarks_on_base(config.model, found):
            self.emit(Note(text=remark, level="warning"))
        previews = self._preview_inputs()
        self.model = self._materialize()
        batches = Batches(
            self.cache_set,
            cache,
            seed=config.train.seed,
            batch_size=config.train.batch_size,
            rank=self.group.rank,
            world=self.group.world,
            bucket_sampling=config.train.bucket_sampling,
        )
        self.trainer = Trainer(
            self.model,
            batches,
            pad_text(cache.read_text(self.cache_set.empty_text_key)),
            self.settings,
            sigma_range=self.variant.sigma_range(),
            first_frame_share=first_frame_share(config, self.variant),
            emit=self.emit,
            control=self.control,
            group=self.group,
            predicted_memory=predicted_peaks(
                self.model,
                config.model,
                self.roots,
                config.lora,
                largest_step(self.cache_set, config.train.batch_size),
                checkpoint_blocks=config.train.gradient_checkpointing,
            ),
            target=self.target,
        )
        self._meters = self.trainer.meters
        if self.saved is not None:
            self.trainer.load_state(self.saved.read_state(), self.saved.progress)
            self.emit(Note(text=f"Continues after saved step {self.saved.step} of {config.train.steps}."))
        if self.group.leads and (note := _set_aside_note(self.store)):
            self.emit(Note(text=note))
        self.previewer = None
        if previews is not None:
            self.previewer = Previewer(self.model, previews, self.directory, emit=self.emit, control=self.control)
            if note := preview_note(self.variant):
                self.emit(Note(text=note))
        _warn_about_disk(self.directory, self.trainer, self.emit)

    def _name_attention(self, found: WanFile) -> None:
        """Log which kernel computes attention; the plain one on a GPU is worth a warning."""
        for device, kernel in attention_kernels(self.config.model, found).items():
            _log.info("attention on %s: %s", device, kernel or "chosen by torch")
            if kernel == "math" and device != "cpu":
                text = (
                    f"torch has no fast attention for this model on {device} and computes it the plain way, several "
                    "times slower. Set base_precision to bf16, or install a torch built for this GPU."
                )
                self.emit(Note(text=text, level="warning"))

    def _materialize(self) -> WanTransformer:
        def on_tensor(done: int, total: int) -> None:
            if done % 50 == 0 or done == total:
                self.emit(Stage(stage="load", done=done, total=total))
            if (reason := self.control.stop_reason()) and self.group.world == 1:
                raise Stopped(reason)

        return materialize(
            self.config.model,
            self.roots,
            self.config.lora if self.saved is None else replace(self.config.lora, start_from=""),
            seed=self.config.train.seed,
            rank=self.group.rank,
            on_tensor=on_tensor,
        )

    def _preview_inputs(self) -> PreviewInputs | None:
        if not self.group.leads or not self.config.train.preview_every_n_steps:
            return None
        return read_preview_inputs(
            self.cache,
            self.cache_set,
            self.config.preview or SampleConfig(),
            starts_from_clip=first_frame_share(self.config, self.variant) == 1.0,
        )

    def _before_first_step(self) -> None:
        if self.trainer.step == 0 and self.group.leads:
            with self._stops_at_the_border():
                self._evaluate()
                if self.previewer is not None:
                    with self._timed("sample", 0):
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
                self._evaluate()
            if self.previewer is not None and (wants_preview or last or self._owes_preview):
                self._owes_preview = False
                with self._timed("sample", step):
                    self.previewer.render(step, f"step-{step:06d}")
        if due or wants_preview:
            self.emit(Stage(stage="train", done=step, total=train.steps))

    def _stops_at_the_border(self) -> contextlib.AbstractContextManager[object]:
        """A leader of several ranks must not leave the others waiting: it gives up what it does, and all stop together
        before the next step, where the reason is shared."""
        return contextlib.nullcontext() if self.group.world == 1 else contextlib.suppress(Stopped)

    def _evaluate(self) -> None:
        if not self.trainer.evaluates:
            return
        with self._timed("evaluate", self.trainer.step):
            evaluated = self.trainer.evaluate()
        if evaluated is not None:
            self.emit(evaluated)
            self._warn_if_it_diverges(evaluated)

    def _warn_if_it_diverges(self, evaluated: Evaluated) -> None:
        """One note when the loss that should fall has risen by half since before training."""
        if self._base_loss is None:
            self._base_loss = eval_losses(self.directory / "metrics.jsonl").get(0) or 0.0
        now = evaluated.eval_loss
        if self._base_loss and now is not None and now > _DIVERGED * self._base_loss and not self._said_diverging:
            self._said_diverging = True
            text = (
                f"The evaluation loss rose from {self._base_loss:.4f} before training to {now:.4f} at step "
                f"{evaluated.step}: the run gets worse, not better. Stop it, lower learning_rate or alpha, and start "
                "again."
            )
            self.emit(Note(text=text, level="warning"))

    def _save(self) -> None:
        """Commit the last good step. A full or missing disk pauses the run until there is room; Stopped when a stop is
        asked for meanwhile."""
        step = self.trainer.good_step
        if not self.group.leads or step == 0 or step == self._saved_step():
            return
        with self._timed("save", step):
            folder = self._commit_patiently(step).folder.name
        self.emit(CheckpointSaved(step=step, folder=f"saves/{folder}"))

    def _commit_patiently(self, step: int) -> SavedStep:
        while True:
            try:
                self.saved = self._commit(step)  # a second call keeps what the first one finished
                self._status("running")
                return self.saved
            except OSError as error:
                if error.errno not in _MENDABLE:
                    raise
                why = f"{error.strerror}{self._room() if error.errno in DISK_FULL else ''}"
                if reason := self.control.stop_reason():
                    raise Stopped(f"{reason}; step {step} could not be saved ({why})") from error
                text = (
                    f"Step {step} cannot be saved ({why}). Make room, or make the run's folder writable; the run waits "
                    "and loses nothing."
                )
                self.emit(Note(text=text, level="warning"))
                _wait(_RETRY_SAVE_S, self.control)

    def _save_before_stopping(self, reason: str) -> str:
        """Why the run stops; where the disk has no room for what it did since the last save, the reason says so."""
        try:
            self._save()
        except Stopped as unsaved:
            return unsaved.reason
        return reason

    def _room(self) -> str:
        with contextlib.suppress(OSError):
            free, need = shutil.disk_usage(self.directory).free, _bytes_of_a_save(self.trainer)
            return f": {self.directory.name} has {size_text(free)} free, a saved step takes {size_text(need)}"
        return ""

    def _commit(self, step: int) -> SavedStep:
        config = self.config
        file = LoraFile(
            weights=LoraWeights.of(self.model),
            alpha=config.lora.effective_alpha,
            dtype=config.train.save_dtype,
            metadata=lora_metadata(
                run_name=config.run_name,
                job_id=config.job_id,
                step=step,
                lora=config.lora,
                settings=self.settings.to_dict(),
                variant=self.variant,
                data_fingerprint=config.data.fingerprint,
                base_digest=config.base_digest,
                pack_version=config.pack_version,
            )
            | synthetic_mark(self.cache_set)
            | (workflow_metadata(self.directory) if self._embed_workflow else {}),
        )
        return self.store.commit(step, config.job_id, file.to_bytes(), self.trainer.state(), self._progress())

    def _progress(self) -> dict[str, Any]:
        noted = {} if self.quantized_by is None else {"quantized_by": self.quantized_by.to_dict()}
        return self.trainer.progress() | noted

    def _saved_step(self) -> int:
        return self.saved.step if self.saved is not None else 0

    def _finish(self, state: str, step: int, reason: str = "") -> Finished:
        with contextlib.suppress(OSError):  # a full disk: what counts is saved, and says the same
            self._status(state, reason)
        self.emit(Stage(stage="done", done=step, total=self.config.train.steps))
        finished = Finished(state=state, step=step, result={"reason": reason, "saved_step": self._saved_step()})
        self.emit(finished)
        return finished

    def _status(self, state: str, reason: str = "") -> None:
        if self.group.leads:
            status = RunStatus(
                state=state,
                step=self._saved_step(),
                steps=self.config.train.steps,
                reason=reason,
                job_id=self.config.job_id,
            )
            write_status(self.directory, status)


def export_lora(directory: Path, step: int | None, target: Path) -> SavedStep:
    """Copy the LoRA of a saved step (None: the latest) to `target`, whole or not at all."""
    store = SaveStore(directory)
    saved = store.latest() if step is None else store.read(step)
    if saved is None:
        asked = "" if step is None else f" {step}"
        intact = [str(other) for other in store.steps() if step is not None and store.read(other)]
        fix = f"Choose one of: {', '.join(intact)}." if intact else "Train it first, at least to its first saved step."
        raise CheckpointError(f"Run {directory.name} has no intact saved step{asked}. {fix}")
    with atomic_write(target) as out, open(saved.lora_file, "rb") as source:
        shutil.copyfileobj(source, out, 4 << 20)
    return saved


def _set_aside_note(store: SaveStore) -> str:
    """Where damaged saved steps lie and what they take, since nobody deletes them; "" without one."""
    folders, size = store.set_aside(), 0
    for file in (file for folder in folders if not folder.is_symlink() for file in folder.glob("*")):
        with contextlib.suppress(OSError):
            size += file.lstat().st_size
    if not folders:
        return ""
    names = ", ".join(folder.name for folder in folders[:3]) + (" and more" if len(folders) > 3 else "")
    steps, was = ("saved step", "was") if len(folders) == 1 else ("saved steps", "were")
    return (
        f"{len(folders)} damaged {steps} of {store.folder.parent.name} ({size_text(size)}) {was} moved aside in its "
        f"folder saves ({names}). Nothing reads them; delete them if you need the room."
    )


def _warn_about_disk(directory: Path, trainer: Trainer, emit: Emit) -> None:
    need = 2 * _bytes_of_a_save(trainer)
    free = shutil.disk_usage(directory).free
    if free < need:
        text = f"Only {free / 2**30:.1f} GiB are free; two saved steps need about {need / 2**30:.1f} GiB."
        emit(Note(text=text, level="warning"))


def _bytes_of_a_save(trainer: Trainer) -> int:
    """Weight, two moments and the LoRA file."""
    return 4 * sum(p.nbytes for p in trainer.parameters.values())


def _wait(seconds: float, control: Control) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not control.stop_reason():
        time.sleep(0.1)
