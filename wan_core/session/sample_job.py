"""Renders validation clips of a run: saved steps at the requested strengths, and the base model."""

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
from ..job.grid import SampleJob
from ..job.open import OpenRun, open_experts
from ..job.partner import partner_note, with_partner
from ..job.preview_lint import preview_remarks
from ..job.remarks import preview_note
from ..kernels import PREVIEW_ATTENTIONS
from ..lora import FrozenLora, LoraWeights, set_strength
from ..model import WanTransformer
from ..sampler import Denoiser
from ..train import Previewer, SavedStep, SaveStore, evaluating, expert_setting
from .devices import Devices, Placed
from .expert import saved_of
from .full_memory import memory_named
from .loading import read_weights
from .preview_loras import check_preview_kernel, check_preview_loras, with_preview_loras
from .previews import inputs_of
from .session import Session


def sample_job(directory: Path, job_file: Path, roots: Roots, *, emit: Emit, control: Control) -> Finished:
    """Render validation clips into the folder of the job file, with ids baseline_p0, step-000250_s1.0_p0 ...

    Existing clips are skipped. Raises ConfigError for too many clips.
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
    check_preview_kernel(runs, job.preview.attention)
    previews = inputs_of(runs[0], job.preview)
    if directory not in job_file.parents:
        raise ConfigError(
            f"The job file {job_file.name} is outside the run, and clips are written next to it. "
            f"Put it into {directory.name}/samples/<a name>/."
        )
    folder = job_file.parent.relative_to(directory).as_posix()

    try:
        with memory_named(session.config, rendering=True):
            renderers = Renderers(session, runs, job.preview.attention)
            if len(runs) == 1:
                session.note(preview_note(runs[0].variant, previews))
            for line in preview_remarks(runs[0].variant, runs[0].cache_set, job.preview):
                session.note(line)
            for one in runs:
                if not one.trained:
                    session.note(partner_note(one, job.preview.loras))
            previewer = Previewer(
                renderers.denoisers(),
                previews,
                directory,
                emit=emit,
                control=control,
                on_device=lambda: renderers.devices.model,
            )
            warned: set[tuple[int | None, str]] = set()
            for cell in cells:
                if (job_file.parent / f"{cell.name}.mp4").is_file():
                    continue
                step, strength = cell.column.step, cell.column.strength or 0.0
                lora = cell.column.lora
                loras = (*job.preview.loras, *(() if lora is None else (lora,)))
                for expert in renderers.use(None if step is None else saves[step], strength, loras):
                    if (step, expert) not in warned:
                        warned.add((step, expert))
                        which = f"the {expert_setting(expert)} noise expert"
                        session.warn(f"Step {step} has no LoRA of {which} yet: this expert renders without a LoRA.")
                clip, seed = previews.clips[cell.row.prompt], cell.row.seed
                clip = clip if seed is None else replace(clip, seed=seed)
                previewer.render_clip(step or 0, cell.name, folder, clip)
    except Stopped as stop:
        return Finished(state="stopped", step=0, result={"reason": stop.reason})
    return Finished(state="done", step=max(saves, default=0))


def _saves_of(job: SampleJob, store: SaveStore, name: str) -> dict[int, SavedStep]:
    """Returns the saved steps that `job` requests. Raises CheckpointError for a damaged one, and for none."""
    saves: dict[int, SavedStep] = {}
    for step in job.saved_steps:
        if (saved := store.read(step)) is None:
            raise CheckpointError(f"Run {name} has no intact saved step {step}. It has: {store.steps()}.")
        saves[step] = saved
    if not saves and not job.loras:
        raise CheckpointError("Run {name} has no saved step yet. Train it first.", name=name)
    return saves


class Renderers:
    """The models of a run for rendering: one, or the two experts of a pair, each in its own sigma range."""

    def __init__(self, session: Session, runs: Sequence[OpenRun], attention: str = PREVIEW_ATTENTIONS[0]) -> None:
        """`attention`: the kernel, one of PREVIEW_ATTENTIONS."""
        self._attention = attention
        # The start LoRA is left out, because every saved step contains it.
        self._models = [
            Placed(run, partial(read_weights, session, run, run.adapters(with_start=False) if run.trained else None))
            for run in runs
        ]
        self.devices = Devices()
        self._saved: SavedStep | None = None
        self._weights: dict[str, LoraWeights] = {}
        """weights of the last used saved step, by expert"""
        self._acts, self._strength = False, 0.0
        self._loras: Sequence[FrozenLora] = ()

    def use(self, saved: SavedStep | None, strength: float, loras: Sequence[FrozenLora] = ()) -> list[str]:
        """Render with the LoRAs of a saved step from now on (None: without), and with `loras`.

        Returns the trained experts without a LoRA in that step, which render without one.
        """
        self._acts, self._strength, self._loras = saved is not None, strength, loras
        if saved is None:
            return []
        if self._saved is None or self._saved.step != saved.step:
            # Freed first, so that memory never holds the weights of two saved steps.
            self._saved, self._weights = None, {}
            for run in (one.run for one in self._models):
                if (trained := saved_of(saved, run)) is not None:
                    self._weights[run.config.train.expert_name] = trained.evaluated_weights
            self._saved = saved
        trained_here = (one.run.config.train.expert_name for one in self._models if one.run.trained)
        return [name for name in trained_here if name not in self._weights]

    def denoisers(self) -> list[Denoiser]:
        """Returns the denoiser of each model, with its sigma range."""
        return [Denoiser(partial(self._opened, one), *one.run.variant.sigma_range()) for one in self._models]

    @contextmanager
    def _opened(self, one: Placed) -> Iterator[WanTransformer]:
        self.devices.load(one)
        model = one.model
        weights = self._weights.get(one.run.config.train.expert_name) if self._acts else None
        if weights is not None:
            weights.load_into(model, "The saved step")
        set_strength(model, self._strength if weights is not None else 0.0)
        with (
            evaluating(model),
            model.previewing_with(self._attention),
            with_preview_loras(model, one.run, self._loras),
        ):
            yield model
