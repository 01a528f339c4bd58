"""Renders validation clips of a run: its saved steps at the asked strengths, beside the base model."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from ..control import Control
from ..errors import CheckpointError, ConfigError, Stopped
from ..events import Emit, Finished, Note, Stage
from ..files import Roots, read_json
from ..job.checks import check_files
from ..job.config import read_run
from ..job.grid import Cell, SampleJob
from ..job.open import open_experts
from ..job.remarks import preview_note
from ..lora import FrozenLora
from ..plan.partner import partner_note, with_partner
from ..train import PreviewClip, Previewer, PreviewInputs, SavedStep, SaveStore, read_preview_inputs
from .full_memory import memory_named
from .preview_loras import check_preview_loras
from .rendering import Renderers


def sample_job(directory: Path, job_file: Path, roots: Roots, *, emit: Emit, control: Control) -> Finished:
    """Render validation clips of a run beside the job file; sample ids are baseline_p0, step-000250_s1.0_p0 ...

    Clips that lie there already are not made again. Raises ConfigError for more of them than anybody looks at.
    """
    job = SampleJob.from_dict(read_json(job_file), "job")
    config, store = read_run(directory), SaveStore(directory)
    newest = store.latest() if not job.saved_steps and not job.loras else None
    if newest is not None:
        job = replace(job, saved_steps=(newest.step,))
    cells = job.cells()
    saves = _saves_of(job, store, directory.name)
    runs = open_experts(directory, roots, config)
    for one in runs:
        check_files(one.config, roots, with_start=False)
    if job.partner is not None:
        runs = with_partner(runs[0], job.partner)
    check_preview_loras(runs, (*job.preview.loras, *job.loras))
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

    try:
        with memory_named(config, rendering=True):
            renderers = Renderers(runs, partial(_tell_of_loading, emit, control))
            if len(runs) == 1 and (note := preview_note(run.variant, previews)):
                emit(Note(text=note))
            for one in runs:
                if not one.trained:
                    emit(Note(text=partner_note(one, job.preview.loras)))
            previewer = Previewer(
                renderers.denoisers(),
                previews,
                directory,
                emit=emit,
                control=control,
                at_home=renderers.model_at_home,
            )
            said: set[tuple[int | None, str]] = set()
            for cell in cells:
                if (job_file.parent / f"{cell.name}.mp4").is_file():
                    continue
                step, strength = cell.column.step, cell.column.strength or 0.0
                for expert in renderers.use(None if step is None else saves[step], strength, _loras(job, cell)):
                    if (step, expert) not in said:
                        said.add((step, expert))
                        text = f"Step {step} has no LoRA of the {expert} noise expert yet: it renders as it is."
                        emit(Note(text=text, level="warning"))
                previewer.render_clip(step or 0, cell.name, folder, _asked(previews, cell))
    except Stopped as stop:
        return Finished(state="stopped", step=0, result={"reason": stop.reason})
    return Finished(state="done", step=max(saves, default=0))


def _saves_of(job: SampleJob, store: SaveStore, name: str) -> dict[int, SavedStep]:
    """Returns the saved steps that `job` asks for. Raises CheckpointError for one that is not whole, and for none."""
    saves: dict[int, SavedStep] = {}
    for step in job.saved_steps:
        if (saved := store.read(step)) is None:
            raise CheckpointError(f"Run {name} has no intact saved step {step}. It has: {store.steps()}.")
        saves[step] = saved
    if not saves and not job.loras:
        raise CheckpointError("Run {name} has no saved step yet. Train it first.", name=name)
    return saves


def _tell_of_loading(emit: Emit, control: Control, done: int, total: int) -> None:
    if done % 50 == 0 or done == total:
        emit(Stage(stage="load", done=done, total=total))
    if reason := control.stop_reason():
        raise Stopped(reason)


def _loras(job: SampleJob, cell: Cell) -> tuple[FrozenLora, ...]:
    """Returns what acts beside the run's own LoRA: what its previews have, and the file of the column."""
    return (*job.preview.loras, *([] if cell.column.lora is None else [cell.column.lora]))


def _asked(previews: PreviewInputs, cell: Cell) -> PreviewClip:
    clip = previews.clips[cell.row.prompt]
    return clip if cell.row.seed is None else replace(clip, seed=cell.row.seed)
