"""Previews between the steps of a run: each model is loaded for its sigma range, then the trained model again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial

from ..checkpoint.catalogue import HIGH
from ..errors import RESUME, OutOfMemory, failure
from ..job.open import OpenRun
from ..job.partner import no_pair, partner_note
from ..job.preview_lint import preview_remarks
from ..job.remarks import preview_note
from ..model import WanTransformer
from ..placement.model_offload import device_memory_ran_out
from ..sampler import Denoiser, SampleConfig
from ..train import Previewer, PreviewInputs, evaluating, expert_setting, read_preview_inputs
from ..words import filled, first_line
from .devices import Placed
from .expert import Expert
from .experts import Experts
from .preview_loras import with_preview_loras
from .session import Session


class Previews:
    """Renders the previews of a run, each model in its own sigma range."""

    def __init__(self, session: Session, experts: Experts, inputs: PreviewInputs) -> None:
        self._experts, self._loras = experts, inputs.config.loras
        self._attention = inputs.config.attention
        models: list[Placed] = [*experts.all]
        if experts.partner is not None:
            models.insert(0 if experts.partner.run.variant.expert == HIGH else 1, experts.partner)
        self._previewer = Previewer(
            [Denoiser(partial(self._opened, one), *one.run.variant.sigma_range()) for one in models],
            inputs,
            session.directory,
            emit=session.emit,
            control=session.control,
            on_device=lambda: experts.devices.model,
        )

    def render(self, step: int) -> None:
        """Render the clips after `step`, and load the current model again.

        Raises OutOfMemory if that model no longer fits; its trained state is kept, and can be saved.
        """
        before = self._experts.on_device
        try:
            self._previewer.render(step, f"step-{step:06d}")
        finally:
            if before is not None:
                try:
                    self._experts.devices.load(before)
                except RuntimeError as error:
                    if not device_memory_ran_out(error):
                        raise
                    name = expert_setting(before.name)
                    what = (
                        f"The {name} noise expert was offloaded for a preview and does not fit on the GPU again "
                        f"({first_line(error)}). Close what else uses the GPU, or render smaller or no previews."
                    )
                    raise OutOfMemory(failure(what, closing=RESUME)) from error

    @contextmanager
    def _opened(self, one: Placed) -> Iterator[WanTransformer]:
        try:
            self._experts.devices.load(one)
        except OutOfMemory as error:  # `Previewer` skips a clip after MemoryError; OutOfMemory would end the run.
            raise MemoryError(str(error)) from error
        run = replace(one.run, has_partner=self._experts.partner is not None)
        with (
            one.trainer.optimizer.evaluated_weights() if isinstance(one, Expert) else nullcontext(),
            evaluating(one.model) as model,
            model.previewing_with(self._attention),
            with_preview_loras(model, run, self._loras),
        ):
            yield model


def preview_inputs(run: OpenRun) -> PreviewInputs | None:
    """Returns the inputs of a run's previews; None for a run without previews."""
    if not run.config.train.preview_every_n_steps:
        return None
    return inputs_of(run, run.config.preview or SampleConfig())


def inputs_of(run: OpenRun, preview: SampleConfig) -> PreviewInputs:
    """Returns the inputs of clips of `run` with the settings `preview`."""
    starts = run.first_frame_share == 1.0
    return read_preview_inputs(run.cache, run.cache_set, preview, run.variant, starts_from_clip=starts)


def make_previews(session: Session, experts: Experts, previews: PreviewInputs | None) -> Previews | None:
    """Returns the renderer of `previews` and emits a note on the models they use; None for a run without previews."""
    if previews is None:
        return None
    run, note = experts.all[0].run, ""
    if experts.without_partner:  # `previews` was read for both experts
        session.warn(no_pair(experts.without_partner))
        previews = preview_inputs(run) or previews
    if experts.partner is not None:
        note = partner_note(experts.partner.run, previews.config.loras)
    elif not experts.both:
        note = preview_note(run.variant, previews)
    for line in (note, *preview_remarks(run.variant, run.cache_set, previews.config)):
        session.note(line)
    if session.group.parts > 1:
        session.note(
            filled(
                "The first process renders previews alone, with all tokens of a clip, and the others wait for it. If "
                "its GPU is too small for that, set a smaller width, height or num_frames in Wan Preview Settings."
            )
        )
    return Previews(session, experts, previews)
