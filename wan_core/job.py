"""Runs a job: from a run directory to trained weights, and to validation clips. The engine as one function.

Order of a run: lock, load, resume, evaluate and preview the base, train; at every save: save, evaluate, preview.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from .checkpoint import PAIR_BOUNDARIES, WanVariant
from .config import Config
from .control import Control
from .data import Batches, LatentCache, condition_kind, pad_text, synthetic_mark, synthetic_note
from .errors import CheckpointError, ConfigError, OutOfMemory, Stopped
from .events import CheckpointSaved, Emit, Event, Finished, Note, Stage, StageEnded
from .export import LoraFile, lora_metadata, workflow_metadata
from .files import Roots, atomic_write, locked, read_json
from .load import inspect_model, materialize
from .lora import LoraWeights, set_strength
from .metrics import JsonlSink
from .model import WanTransformer
from .run import QUEUE_DONE, RunConfig, RunStatus, read_run, write_status
from .sample import SampleConfig
from .train import (
    Group,
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

__all__ = ["SampleJob", "check_files", "export_lora", "first_frame_share", "run_job", "sample_job", "with_expert"]

_log = logging.getLogger(__name__)
_MENDABLE = tuple(
    getattr(errno, name)
    for name in ("ENOSPC", "EDQUOT", "EROFS", "ENOENT", "EACCES", "EPERM", "EBUSY")
    if hasattr(errno, name)
)
"""Errors of a save that pass, or that a user can mend: no room, no rights, a file held open (Windows)."""
_RETRY_SAVE_S = 5.0


@dataclass(frozen=True, kw_only=True)
class SampleJob(Config):
    """Validation clips of a run: which saved steps at which strengths."""

    saved_steps: tuple[int, ...] = ()
    """empty: the latest"""
    strengths: tuple[float, ...] = (1.0,)
    baseline: bool = True
    """also the base model without LoRA"""
    preview: SampleConfig = field(default_factory=SampleConfig)


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
        with session:
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
        self.control, self.group, self.target = control, group, target
        self._sink = JsonlSink(directory / "metrics.jsonl") if group.leads else None
        self._emit_out = emit
        self.store = SaveStore(directory)
        self.saved: SavedStep | None = None

    def __enter__(self) -> _Session:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        try:
            if error is not None and not isinstance(error, Stopped):
                with contextlib.suppress(OSError):  # the error that ended the run says more than a full disk
                    self._status("failed", str(error)[:1000])
        finally:
            if self._sink is not None:
                self._sink.close()

    def emit(self, event: Event) -> None:
        if self._sink is not None:
            self._sink(event)
        self._emit_out(event)

    @contextlib.contextmanager
    def _timed(self, stage: str, step: int) -> Iterator[None]:
        """What is inside belongs to `stage`, after `step` steps; how long it took is kept, however it ends."""
        began = time.monotonic()
        self.emit(Stage(stage=stage))
        try:
            yield
        finally:
            self.emit(StageEnded(stage=stage, seconds=time.monotonic() - began, step=step))

    def train(self, max_steps: int, require_state: bool, cache_seconds: float = 0.0) -> Finished:
        total = self.config.train.steps
        self.saved = self.store.latest()
        if self.saved is None and require_state:
            raise CheckpointError(
                f"Run {self.directory.name} has no saved step to resume. Use train instead of resume."
            )
        if self.saved is not None and self.saved.job_id != self.config.job_id:
            raise CheckpointError(
                f"The saved step {self.saved.step} of {self.directory.name} belongs to another job. "
                "Queue TrainLoRA again: it will start a new folder."
            )
        if self.saved is not None and self.saved.step >= total:
            return self._finish("done", self.saved.step)
        self._status("running")
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
            self._save()
            if self.trainer.step == total:  # told to stop while the last clip was rendered: nothing is left to train
                return self._finish("done", total)
            return self._finish("stopped", self.trainer.step, stop.reason)
        except torch.OutOfMemoryError as error:
            raise _out_of_memory(error) from error
        self._save()
        if goal < total:
            return self._finish("stopped", goal, f"{max_steps} {QUEUE_DONE}")
        return self._finish("done", goal)

    def _load(self) -> None:
        config = self.config
        self.variant = with_expert(inspect_model(config.model, self.roots).variant, config.train.expert)
        # A resumed run holds its start LoRA already; that file may be gone.
        check_files(config, self.roots, with_start=self.saved is None)
        cache = LatentCache(self.roots.first("cache"))
        self.cache, self.cache_set = cache, cache.read_set(config.data.fingerprint)
        kind = condition_kind(self.variant.task, self.variant.shape.image_dim, self.variant.shape.condition_channels)
        self.cache_set.require_fit(self.variant.name, self.variant.latents, kind)
        if note := synthetic_note(self.cache_set):
            self.emit(Note(text=note, level="warning"))
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
            config.train,
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
        if self.saved is not None:
            self.trainer.load_state(self.saved.read_state(), self.saved.progress)
            self.emit(Note(text=f"Continues after saved step {self.saved.step} of {config.train.steps}."))
        self.previewer = None
        if previews is not None:
            self.previewer = Previewer(self.model, previews, self.directory, emit=self.emit, control=self.control)
        _warn_about_disk(self.directory, self.trainer, self.emit)

    def _materialize(self) -> WanTransformer:
        def on_tensor(done: int, total: int) -> None:
            if done % 50 == 0 or done == total:
                self.emit(Stage(stage="load", done=done, total=total))
            if (reason := self.control.stop_reason()) and self.group.world == 1:
                raise Stopped(reason)

        try:
            return materialize(
                self.config.model,
                self.roots,
                self.config.lora if self.saved is None else replace(self.config.lora, start_from=""),
                seed=self.config.train.seed,
                rank=self.group.rank,
                on_tensor=on_tensor,
            )
        except torch.OutOfMemoryError as error:
            raise _out_of_memory(error) from error

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
        """Save, evaluate and preview where they are due; a save comes before anything that could fail."""
        train = self.config.train
        last = step == train.steps
        if not self.group.leads:
            return
        wants_save, wants_preview = self.control.take("save"), self.control.take("sample")
        due = last or step % train.save_every_n_steps == 0
        if due or wants_save:
            self._save()
        with self._stops_at_the_border():
            if due:
                self._evaluate()
            every = train.preview_every_n_steps
            if self.previewer is not None and (wants_preview or last or step % every == 0):
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

    def _save(self) -> None:
        """Commit the present step. A full or missing disk pauses the run until there is room or a stop is asked for."""
        step = self.trainer.step
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
                if error.errno not in _MENDABLE or self.control.stop_reason():
                    raise
                text = (
                    f"Step {step} cannot be saved ({error.strerror}). Make room, or make the run's folder writable; "
                    "the run waits and loses nothing."
                )
                self.emit(Note(text=text, level="warning"))
                _wait(_RETRY_SAVE_S, self.control)

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
                settings=config.train.to_dict(),
                variant=self.variant,
                data_fingerprint=config.data.fingerprint,
                base_digest=config.base_digest,
                pack_version=config.pack_version,
            )
            | synthetic_mark(self.cache_set)
            | (workflow_metadata(self.directory) if self._embed_workflow else {}),
        )
        return self.store.commit(step, config.job_id, file.to_bytes(), self.trainer.state(), self.trainer.progress())

    def _saved_step(self) -> int:
        return self.saved.step if self.saved is not None else 0

    def _finish(self, state: str, step: int, reason: str = "") -> Finished:
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


def sample_job(directory: Path, job_file: Path, roots: Roots, *, emit: Emit, control: Control) -> Finished:
    """Render validation clips of a run beside the job file; sample ids are baseline_p0, step-000250_s1.0_p0 ..."""
    job = SampleJob.from_dict(read_json(job_file), "job")
    config, store = read_run(directory), SaveStore(directory)
    steps = job.saved_steps or tuple(store.steps()[-1:])
    saves = [(step, store.read(step)) for step in steps]
    for step, saved in saves:
        if saved is None:
            raise CheckpointError(f"Run {directory.name} has no intact saved step {step}. It has: {store.steps()}.")
    if not saves:
        raise CheckpointError(f"Run {directory.name} has no saved step yet. Train it first.")
    check_files(config, roots, with_start=False)
    cache = LatentCache(roots.first("cache"))
    variant = inspect_model(config.model, roots).variant
    previews = read_preview_inputs(
        cache,
        cache.read_set(config.data.fingerprint),
        job.preview,
        starts_from_clip=first_frame_share(config, variant) == 1.0,
    )
    if directory not in job_file.parents:
        raise ConfigError(
            f"The job file {job_file.name} lies outside the run, and clips are written beside it. "
            f"Put it into {directory.name}/samples/<a name>/."
        )
    folder = job_file.parent.relative_to(directory).as_posix()

    def on_tensor(done: int, total: int) -> None:
        if done % 50 == 0 or done == total:
            emit(Stage(stage="load", done=done, total=total))
        if reason := control.stop_reason():
            raise Stopped(reason)

    try:
        # The start LoRA is already part of every saved step.
        model = materialize(config.model, roots, replace(config.lora, start_from=""), on_tensor=on_tensor)
        previewer = Previewer(model, previews, directory, emit=emit, control=control)
        if job.baseline:
            set_strength(model, 0.0, config.lora)
            previewer.render(0, "baseline", folder)
        for step, saved in saves:
            assert saved is not None
            adapters = {k[5:]: v for k, v in saved.read_state().items() if k.startswith("lora.")}
            LoraWeights(adapters).load_into(model, f"saved step {step}")
            for strength in job.strengths:
                set_strength(model, strength, config.lora)
                previewer.render(step, f"step-{step:06d}_s{strength}", folder)
    except Stopped as stop:
        return Finished(state="stopped", step=0, result={"reason": stop.reason})
    except torch.OutOfMemoryError as error:
        raise _out_of_memory(error) from error
    return Finished(state="done", step=saves[-1][0])


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


def check_files(config: RunConfig, roots: Roots, *, with_start: bool) -> None:
    """The base, and with `with_start` the start LoRA, must be the files the job was made with: others are another job.

    CheckpointError naming the file that was exchanged.
    """
    asked = config if with_start else replace(config, lora=replace(config.lora, start_from=""), start_digest="")
    now = asked.with_digests(roots)
    for what, known, found in (
        (asked.model.base_file, asked.base_digest, now.base_digest),
        (asked.lora.start_from, asked.start_digest, now.start_digest),
    ):
        if known and known != found:
            raise CheckpointError(
                f"{what} is not the file this run was made with. Put that file back, or start a new run."
            )


def first_frame_share(config: RunConfig, variant: WanVariant) -> float:
    """Only TI2V-5B is given the first latent frame of a clip; other image-to-video models read channels."""
    return config.train.first_frame_conditioning_p if variant.task == "ti2v" else 0.0


def with_expert(variant: WanVariant, expert: str) -> WanVariant:
    """Narrow the noise range to one expert of an A14B pair: the one that the settings say, or with auto the file.

    ConfigError when neither says which, or both say something else: trained on the wrong noise, a LoRA is useless.
    """
    if expert == "auto":
        if variant.boundary is not None and variant.expert is None:
            raise ConfigError(
                f"The model is {variant.name}, and its file name says neither high nor low noise; each expert is "
                "trained on its own noise levels. Set expert to high or low, or variant in Load Wan Model."
            )
        return variant
    boundary = variant.boundary or next((b for name, b in PAIR_BOUNDARIES.items() if name in variant.candidates), None)
    if variant.expert not in (None, f"{expert}_noise"):
        raise ConfigError(
            f'expert is "{expert}", and the model is {variant.name}. Set expert to auto, or choose the other file; if '
            "its name is wrong, set variant in Load Wan Model."
        )
    if boundary is None:
        raise ConfigError(
            f'expert "{expert}" makes no sense for {variant.name}, which has one model. Set expert to auto.'
        )
    return replace(variant, expert=f"{expert}_noise", boundary=boundary)


def _warn_about_disk(directory: Path, trainer: Trainer, emit: Emit) -> None:
    # Weight, two moments and the LoRA file, for two saved steps.
    need = 2 * 4 * sum(p.nbytes for p in trainer.parameters.values())
    free = shutil.disk_usage(directory).free
    if free < need:
        text = f"Only {free / 2**30:.1f} GiB are free; two saved steps need about {need / 2**30:.1f} GiB."
        emit(Note(text=text, level="warning"))


def _out_of_memory(error: BaseException) -> OutOfMemory:
    return OutOfMemory(
        "The GPU ran out of memory. What helps most, in this order: fewer num_frames or a smaller width and height in "
        "WanVideoDataset; Fp8Quantize before TrainLoRA; SplitAcrossGPUs when there is a second card. "
        f"Saved steps are kept. ({str(error).splitlines()[0][:200]})"
    )


def _wait(seconds: float, control: Control) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not control.stop_reason():
        time.sleep(0.1)
