"""Renders validation clips of a run: its saved steps at the requested strengths, with the base model beside them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from ..control import Control
from ..errors import CheckpointError, ConfigError, Stopped
from ..events import Emit, Finished
from ..files import Roots, read_json
from ..job.checks import check_files
from ..job.config import read_run
from ..job.grid import Cell, SampleJob
from ..job.open import OpenRun, open_experts
from ..job.partner import partner_note, with_partner
from ..job.remarks import preview_note
from ..lora import FrozenLora, LoraWeights, set_strength
from ..model import WanTransformer
from ..sampler import Denoiser
from ..train import PreviewClip, Previewer, PreviewInputs, SavedStep, SaveStore, evaluating, expert_setting
from .devices import Devices, Placed
from .expert import saved_of
from .full_memory import memory_named
from .loading import read_weights
from .preview_loras import check_preview_loras, with_preview_loras
from .session import Session
from .showing import inputs_of


def sample_job(directory: Path, job_file: Path, roots: Roots, *, emit: Emit, control: Control) -> Finished:
    """Render validation clips of a run into the folder of the job file; ids are baseline_p0, step-000250_s1.0_p0 ...

    Clips that lie there already are not made again. Raises ConfigError for more of them than anybody looks at.
    """
    job = SampleJob.from_dict(read_json(job_file), "job")
    session = Session(directory=directory, config=read_run(directory), roots=roots, emit=emit, control=control)
    store = SaveStore(directory)
    newest = store.latest() if not job.saved_steps and not job.loras else None
    if newest is not None:
        job = replace(job, saved_steps=(newest.step,))
    cells = job.cells()
    saves = _saves_of(job, store, directory.name)
    runs = open_experts(directory, roots, session.config)
    for one in runs:
        check_files(one.config, roots, with_start=False)
    if job.partner is not None:
        runs = with_partner(runs[0], job.partner)
    check_preview_loras(runs, (*job.preview.loras, *job.loras))
    previews = inputs_of(runs[0], job.preview)
    if directory not in job_file.parents:
        raise ConfigError(
            f"The job file {job_file.name} lies outside the run, and clips are written beside it. "
            f"Put it into {directory.name}/samples/<a name>/."
        )
    folder = job_file.parent.relative_to(directory).as_posix()

    try:
        with memory_named(session.config, rendering=True):
            renderers = Renderers(session, runs)
            if len(runs) == 1:
                session.note(preview_note(runs[0].variant, previews))
            for one in runs:
                if not one.trained:
                    session.note(partner_note(one, job.preview.loras))
            previewer = Previewer(
                renderers.denoisers(), previews, directory, emit=emit, control=control, at_home=renderers.model_at_home
            )
            warned: set[tuple[int | None, str]] = set()
            for cell in cells:
                if (job_file.parent / f"{cell.name}.mp4").is_file():
                    continue
                step, strength = cell.column.step, cell.column.strength or 0.0
                for expert in renderers.use(None if step is None else saves[step], strength, _loras(job, cell)):
                    if (step, expert) not in warned:
                        warned.add((step, expert))
                        which = f"the {expert_setting(expert)} noise expert"
                        session.warn(f"Step {step} has no LoRA of {which} yet: it renders as it is.")
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


def _loras(job: SampleJob, cell: Cell) -> tuple[FrozenLora, ...]:
    """Returns what acts beside the run's own LoRA: what its previews have, and the file of the column."""
    return (*job.preview.loras, *([] if cell.column.lora is None else [cell.column.lora]))


def _asked(previews: PreviewInputs, cell: Cell) -> PreviewClip:
    clip = previews.clips[cell.row.prompt]
    return clip if cell.row.seed is None else replace(clip, seed=cell.row.seed)


class Renderers:
    """The models of a run that only render: one, or the two experts of a pair, each for its own sampling steps."""

    def __init__(self, session: Session, runs: Sequence[OpenRun]) -> None:
        # The start LoRA is already part of every saved step.
        self._models = [
            Placed(run, partial(read_weights, session, run, run.adapters(with_start=False) if run.trained else None))
            for run in runs
        ]
        self._devices = Devices()
        self._saved: SavedStep | None = None
        self._weights: dict[str, LoraWeights] = {}
        """by expert, those of the saved step that was used last"""
        self._acts, self._strength = False, 0.0
        self._loras: Sequence[FrozenLora] = ()

    def use(self, saved: SavedStep | None, strength: float, loras: Sequence[FrozenLora] = ()) -> list[str]:
        """Render with the LoRAs of a saved step from now on; None: without any. `loras` act besides.

        Returns the experts that are trained and that the step holds no LoRA of: they render as they are.
        """
        self._acts, self._strength, self._loras = saved is not None, strength, loras
        if saved is None:
            return []
        if self._saved is None or self._saved.step != saved.step:
            self._saved, self._weights = None, {}  # before the next ones are read
            for run in (one.run for one in self._models):
                if (trained := saved_of(saved, run)) is not None:
                    self._weights[run.config.train.expert_name] = trained.judged
            self._saved = saved
        trained_here = (one.run.config.train.expert_name for one in self._models if one.run.trained)
        return [name for name in trained_here if name not in self._weights]

    def denoisers(self) -> list[Denoiser]:
        """Returns what denoises at which noise level: each model on its own."""
        return [Denoiser(partial(self._opened, one), *one.run.variant.sigma_range()) for one in self._models]

    def model_at_home(self) -> WanTransformer:
        """Returns the model on the devices."""
        return self._devices.model

    @contextmanager
    def _opened(self, one: Placed) -> Iterator[WanTransformer]:
        self._devices.bring(one)
        model = one.model
        weights = self._weights.get(one.run.config.train.expert_name) if self._acts else None
        if weights is not None:
            weights.load_into(model, "The saved step")
        set_strength(model, self._strength if weights is not None else 0.0)
        with evaluating(model), with_preview_loras(model, one.run, self._loras):
            yield model
