"""Shows clips of a run between its steps: its models change places for them, and the one at work comes back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch

from ..control import Control
from ..errors import OutOfMemory
from ..events import Emit
from ..model import WanTransformer
from ..sampler import Denoiser
from ..train import Previewer, PreviewInputs, evaluating
from ..words import first_line
from .acting import acting
from .expert import Expert
from .experts import Experts

__all__ = ["Showing"]


class Showing:
    """Renders the previews of a run in its directory: its models in turns, each on its own noise levels."""

    def __init__(
        self, experts: Experts, inputs: PreviewInputs, directory: Path, *, emit: Emit, control: Control
    ) -> None:
        self._experts, self._loras = experts, inputs.config.loras
        denoisers = [
            Denoiser(partial(self._opened, expert), *expert.run.variant.sigma_range()) for expert in experts.all
        ]
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
                    self._experts.bring(before)
                except torch.OutOfMemoryError as error:
                    raise OutOfMemory(
                        f"The {before.name} noise expert made room for a preview and does not fit back. Close what "
                        "else uses the GPU, or render smaller or no previews, and queue again: it goes on after the "
                        f"last finished step. ({first_line(error)})"
                    ) from error

    @contextmanager
    def _opened(self, expert: Expert) -> Iterator[WanTransformer]:
        try:
            self._experts.bring(expert)
        except OutOfMemory as error:  # it costs this clip; whether the run can go on shows when it is back at work
            raise MemoryError(str(error)) from error
        with (
            expert.trainer.judged(),
            evaluating(expert.model) as model,
            acting(model, expert.run, self._loras),
        ):
            yield model

    def _model_at_home(self) -> WanTransformer:
        assert self._experts.at_work is not None
        return self._experts.at_work.model
