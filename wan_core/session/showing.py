"""Shows clips of a run between its steps: models change places for them, and the one at work comes back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from ..checkpoint.catalogue import HIGH
from ..control import Control
from ..errors import RESUME, OutOfMemory, failure
from ..events import Emit, Note
from ..job.open import OpenRun
from ..job.remarks import preview_note
from ..model import WanTransformer
from ..placement.room import device_memory_ran_out
from ..plan.partner import no_pair, partner_note
from ..sampler import Denoiser
from ..train import Previewer, PreviewInputs, evaluating
from ..words import first_line
from .expert import Expert
from .experts import Experts
from .guest import Guest
from .loading import preview_inputs
from .preview_loras import with_preview_loras


class Showing:
    """Renders the previews of a run in its directory: its models in turns, each on its own noise levels.

    Where it trains one expert of a pair, its partner has a turn too.
    """

    def __init__(
        self,
        experts: Experts,
        inputs: PreviewInputs,
        directory: Path,
        *,
        emit: Emit,
        control: Control,
        guest: Guest | None = None,
    ) -> None:
        """`guest`: the partner, where clips go through it."""
        self._experts, self._guest, self._loras = experts, guest, inputs.config.loras
        denoisers = [
            Denoiser(partial(self._opened, expert), *expert.run.variant.sigma_range()) for expert in experts.all
        ]
        if guest is not None:
            own = Denoiser(partial(self._opened_guest, guest), *guest.run.variant.sigma_range())
            denoisers.insert(0 if guest.run.variant.expert == HIGH else 1, own)
        self._previewer = Previewer(
            denoisers, inputs, directory, emit=emit, control=control, at_home=self._model_at_home
        )

    def render(self, step: int) -> None:
        """Render the clips after `step`; whoever was at work is so again. What fails is told as `Previewer` does.

        Raises OutOfMemory where that one no longer fits. What it learnt is then kept, and can be saved.
        """
        with self._back_to_work():
            self._previewer.render(step, f"step-{step:06d}")

    @contextmanager
    def _back_to_work(self) -> Iterator[None]:
        before = self._experts.at_work
        try:
            yield
        finally:
            if before is not None:
                try:
                    self._bring(before)
                except RuntimeError as error:
                    if not device_memory_ran_out(error):
                        raise
                    what = (
                        f"The {before.name} noise expert made room for a preview and does not fit back "
                        f"({first_line(error)}). Close what else uses the GPU, or render smaller or no previews."
                    )
                    raise OutOfMemory(failure(what, closing=RESUME)) from error

    @contextmanager
    def _opened(self, expert: Expert) -> Iterator[WanTransformer]:
        with _costs_this_clip():
            self._bring(expert)
        run = replace(expert.run, has_partner=self._guest is not None)
        with (
            expert.trainer.judged(),
            evaluating(expert.model) as model,
            with_preview_loras(model, run, self._loras),
        ):
            yield model

    @contextmanager
    def _opened_guest(self, guest: Guest) -> Iterator[WanTransformer]:
        with _costs_this_clip():
            if not guest.here:
                self._experts.make_room(guest.run, rests=guest.rests)
                guest.come()
        with evaluating(guest.model) as model, with_preview_loras(model, guest.run, self._loras):
            yield model

    def _bring(self, expert: Expert) -> None:
        if self._guest is not None:
            needed = self._experts.needed_by(expert.run, rests=expert.loaded is not None)
            self._guest.leave(needed, self._experts.processes)
        self._experts.bring(expert)

    def _model_at_home(self) -> WanTransformer:
        if self._guest is not None and self._guest.here:
            return self._guest.model
        assert self._experts.at_work is not None
        return self._experts.at_work.model


def begin_showing(
    experts: Experts,
    previews: PreviewInputs,
    partner: OpenRun | None,
    *,
    emit: Emit,
    warn: Callable[[str], None],
    control: Control,
) -> Showing:
    """Returns who renders the previews of a run, and says what they show; `partner`: what they are to go through."""
    run, guest, note = experts.all[0].run, None, ""
    if partner is not None and experts.without_partner:
        warn(no_pair(experts.without_partner))
        partner, previews = None, preview_inputs(run) or previews
    if partner is not None:
        guest, note = experts.guest(partner), partner_note(partner, previews.config.loras)
    elif not experts.both:
        note = preview_note(run.variant, previews)
    if note:
        emit(Note(text=note))
    return Showing(experts, previews, run.directory, emit=emit, control=control, guest=guest)


@contextmanager
def _costs_this_clip() -> Iterator[None]:
    """Inside, want of memory is not the run's end: whether that can go on shows when its model is back at work."""
    try:
        yield
    except OutOfMemory as error:
        raise MemoryError(str(error)) from error
