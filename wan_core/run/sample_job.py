"""Renders validation clips of a run: its saved steps at the asked strengths, beside the base model."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ..config import Config
from ..control import Control
from ..errors import CheckpointError, ConfigError, Stopped
from ..events import Emit, Finished, Note, Stage
from ..files import Roots, read_json
from ..sampler import SampleConfig
from ..train import Previewer, SaveStore, read_preview_inputs
from .checks import check_files
from .config import read_run
from .full_memory import memory_named
from .open import open_experts
from .remarks import preview_note
from .rendering import Renderers

__all__ = ["SampleJob", "sample_job"]


@dataclass(frozen=True, kw_only=True)
class SampleJob(Config):
    """Validation clips of a run: which saved steps at which strengths."""

    saved_steps: tuple[int, ...] = ()
    """empty: the latest"""
    strengths: tuple[float, ...] = (1.0,)
    baseline: bool = True
    """also the base model without LoRA"""
    preview: SampleConfig = field(default_factory=SampleConfig)


def sample_job(directory: Path, job_file: Path, roots: Roots, *, emit: Emit, control: Control) -> Finished:
    """Render validation clips of a run beside the job file; sample ids are baseline_p0, step-000250_s1.0_p0 ..."""
    job = SampleJob.from_dict(read_json(job_file), "job")
    config, store = read_run(directory), SaveStore(directory)
    newest = store.latest() if not job.saved_steps else None
    saves = [(step, store.read(step)) for step in job.saved_steps] or ([(newest.step, newest)] if newest else [])
    for step, saved in saves:
        if saved is None:
            raise CheckpointError(f"Run {directory.name} has no intact saved step {step}. It has: {store.steps()}.")
    if not saves:
        raise CheckpointError(f"Run {directory.name} has no saved step yet. Train it first.")
    runs = open_experts(directory, roots, config)
    for one in runs:
        check_files(one.config, roots, with_start=False)
    run = runs[0]
    previews = read_preview_inputs(
        run.cache, run.cache_set, job.preview, run.variant, starts_from_clip=run.first_frame_share == 1.0
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
        with memory_named(config, rendering=True):
            renderers = Renderers(runs, on_tensor)
            if len(runs) == 1 and (note := preview_note(run.variant)):
                emit(Note(text=note))
            previewer = Previewer(
                renderers.denoisers(),
                previews,
                directory,
                emit=emit,
                control=control,
                at_home=renderers.model_at_home,
            )
            if job.baseline:
                renderers.use(None, 0.0)
                previewer.render(0, "baseline", folder)
            for step, saved in saves:
                for strength in job.strengths:
                    for expert in renderers.use(saved, strength):
                        text = f"Step {step} has no LoRA of the {expert} noise expert yet: it renders as it is."
                        emit(Note(text=text, level="warning"))
                    previewer.render(step, f"step-{step:06d}_s{strength}", folder)
    except Stopped as stop:
        return Finished(state="stopped", step=0, result={"reason": stop.reason})
    return Finished(state="done", step=saves[-1][0])
