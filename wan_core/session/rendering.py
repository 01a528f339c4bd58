"""The models that render the clips of a run: one, or the two experts of a pair, each for its own sampling steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from ..footprint import weights_once_loaded
from ..job.open import OpenRun
from ..load import materialize
from ..lora import FrozenLora, LoraWeights, set_strength
from ..model import WanTransformer
from ..sampler import Denoiser
from ..train import SavedStep, evaluating
from .device_place import DevicePlace, host_holds
from .expert import saved_of
from .preview_loras import with_preview_loras


class Renderers:
    """The models of a run, of which one lies on the devices; the other rests in host memory, or is read again."""

    def __init__(self, runs: Sequence[OpenRun], on_tensor: Callable[[int, int], None]) -> None:
        """`on_tensor` is that of `materialize`."""
        self._runs, self._on_tensor = runs, on_tensor
        self._places = {run.config.train.expert: DevicePlace[WanTransformer](lambda model: model) for run in runs}
        self._at_home = ""
        self._weights: dict[str, LoraWeights] = {}
        self._read: tuple[int, dict[str, LoraWeights]] | None = None
        """the weights of the saved step that was used last"""
        self._strength = 0.0
        self._loras: Sequence[FrozenLora] = ()

    def use(self, saved: SavedStep | None, strength: float, loras: Sequence[FrozenLora] = ()) -> list[str]:
        """Render with the LoRAs of a saved step from now on; None: without any. `loras` act besides.

        Returns the experts that are trained and that the step holds no LoRA of: they render as they are.
        """
        self._strength, self._weights, self._loras = strength, {}, loras
        if saved is None:
            return []
        if self._read is None or self._read[0] != saved.step:
            self._read = None  # before the next ones are read
            self._read = saved.step, self._weights_of(saved)
        self._weights = self._read[1]
        trained = (run.config.train.expert for run in self._runs if run.trained)
        return [name for name in trained if name not in self._weights]

    def _weights_of(self, saved: SavedStep) -> dict[str, LoraWeights]:
        found: dict[str, LoraWeights] = {}
        for run in self._runs:
            if (learnt := saved_of(saved, run)) is not None:
                found[run.config.train.expert] = learnt.judged
        return found

    def denoisers(self) -> list[Denoiser]:
        """Returns who denoises at which noise level: each model on its own."""
        return [Denoiser(partial(self._opened, run), *run.variant.sigma_range()) for run in self._runs]

    def model_at_home(self) -> WanTransformer:
        """Returns the model that lies on the devices."""
        model = self._places[self._at_home].held
        assert model is not None
        return model

    @contextmanager
    def _opened(self, run: OpenRun) -> Iterator[WanTransformer]:
        self._bring(run)
        model, weights = self.model_at_home(), self._weights.get(self._at_home)
        if weights is not None:
            weights.load_into(model, "The saved step")
        set_strength(model, self._strength if weights is not None else 0.0)
        with evaluating(model), with_preview_loras(model, run, self._loras):
            yield model

    def _bring(self, run: OpenRun) -> None:
        name, leaving = run.config.train.expert, self._at_home
        if name == leaving:
            return
        coming, self._at_home = self._places[name], ""
        if leaving:
            needed = 0 if coming.held is not None else weights_once_loaded(run.config.model, run.file)
            self._places[leaving].leave(stays=self._fits_beside(leaving, needed))
        coming.come(lambda: self._read_model(run))
        self._at_home = name

    def _fits_beside(self, leaving: str, coming: int) -> bool:
        model = self._places[leaving].held
        return model is not None and host_holds(model, coming)

    def _read_model(self, run: OpenRun) -> WanTransformer:
        # The start LoRA is already part of every saved step.
        adapters = run.adapters(with_start=False) if run.trained else None
        return materialize(run.config.model, run.roots, adapters, on_tensor=self._on_tensor, found=run.file)
