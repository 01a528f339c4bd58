"""One model of a run: at work, resting or not loaded; and what it has learnt, which a saved step holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from torch import Tensor

from ..errors import CheckpointError
from ..events import Event
from ..files import Roots
from ..job.open import OpenRun
from ..lora import LoraWeights, exported
from ..model import WanTransformer
from ..precision import QuantizedBy, quantized_by
from ..train import EXPERTS, SavedStep, Trainer
from ..train.meters import MemoryReading
from .device_place import DevicePlace
from .loading import Loaded, Planned

_LOW_NOISE = "low_noise."
"""before the names of what a saved step of both experts holds of the second one"""

State = dict[str, Tensor]


@dataclass(frozen=True)
class Learnt:
    """The values a model has learnt, in host memory."""

    state: State
    """adapters as they are trained, and what the optimizer holds"""
    progress: dict[str, Any]
    """the counters of the trainer"""
    lora: Mapping[str, Tensor] | bytes
    """the weights that count, or the file a saved step has of them"""

    @property
    def judged(self) -> LoraWeights:
        """The weights that count, in float32: a mean where there is one, else those that are trained."""
        names = [name.removeprefix("lora.") for name in self.state if name.startswith("lora.")]
        if not names:
            raise CheckpointError("The saved step holds no LoRA. Choose another one.")
        kinds = ("ema.", "judged.", "lora.")  # what is not trained is under the last name alone
        return LoraWeights({n: next(self.state[k + n] for k in kinds if k + n in self.state) for n in names})

    @property
    def step(self) -> int:
        """The last good step of its own."""
        return int(self.progress["step"])


class Expert:
    """One model of a run: at work, resting, or not loaded; and what it has learnt."""

    def __init__(self, run: OpenRun, saved: Learnt | None) -> None:
        """`saved`: what to go on from."""
        self.run, self.name = run, run.config.train.expert
        self._place = DevicePlace[Loaded](attrgetter("model"))
        self.planned: Planned | None = None
        """how it is trained here, once that is known"""
        self.at_work = self.rehearsed = False
        self._learnt = saved
        quantize = run.config.model.quantize
        self.quantized_by: QuantizedBy | None = (
            None if quantize is None else quantized_by(quantize, run.file.compute_dtype)
        )
        """the mark of the 8-bit weights of its base; None where they are not made here"""

    @property
    def loaded(self) -> Loaded | None:
        """The model and its trainer, at work or resting; None where they are not loaded."""
        return self._place.held

    @property
    def model(self) -> WanTransformer:
        """The model of one that is loaded."""
        assert self.loaded is not None
        return self.loaded.model

    @property
    def trainer(self) -> Trainer:
        """The trainer of a model that is at work."""
        assert self.loaded is not None
        return self.loaded.trainer

    def hear(self, event: Event) -> None:
        """Note what an event says of it beside what was predicted, where something was."""
        if self.planned is not None and self.planned.measured is not None:
            self.planned.measured.hear(event)

    def end_phase(self, stage: str) -> MemoryReading:
        """Returns what its devices held since the phase before, beside what was predicted for `stage`."""
        reading = self.trainer.meters.end_phase()
        measured = self.planned and self.planned.measured
        return measured.predicted_beside(stage, reading) if measured else reading

    @property
    def planned_bytes(self) -> int | None:
        """Bytes that a step was planned to take on its fullest device; None where no plan was made."""
        measured = self.planned and self.planned.measured
        return max(measured.of_a_step().values(), default=None) if measured else None

    def keep_measured(self, roots: Roots) -> None:
        """Let the next plan on this machine follow what the run took, unless it is not run as it was planned."""
        measured = self.planned and self.planned.measured
        if measured and not self.trainer.gave_way:
            measured.keep(roots)

    @property
    def step(self) -> int:
        """The optimizer steps of its own."""
        return self.trainer.step if self.at_work else self._resting_step

    @property
    def good_step(self) -> int:
        """The step whose weights these are: steps that were not finite since then changed nothing."""
        return self.trainer.good_step if self.at_work else self._resting_step

    @property
    def _resting_step(self) -> int:
        return self._learnt.step if self._learnt is not None else 0

    @property
    def total(self) -> int:
        """The steps of its own in the whole run."""
        return self.run.config.train.steps

    def learnt(self) -> Learnt | None:
        """Returns what it has learnt so far; None where that is nothing."""
        found = self._now() if self.at_work else self._learnt
        return found if found is not None and found.step else None

    def _now(self) -> Learnt:
        assert self.loaded is not None
        with self.trainer.judged():
            lora = exported(self.loaded.model)
        return Learnt(self.trainer.state(), self.trainer.progress(), lora)

    def begin(self, load: Callable[[bool], Loaded]) -> None:
        """Come to work with what was learnt so far; `load(with_start)` reads the model where it does not rest here.

        Where that fails, as for want of memory, it gives up the model, of which anything may be half there, and can be
        asked again: what was learnt is kept.
        """
        learnt = self._learnt
        if self.loaded is None:
            self.rehearsed = False
        trainer = self._place.come(lambda: load(learnt is None)).trainer
        if learnt is not None:
            try:
                trainer.load_state(learnt.state, learnt.progress)
            except BaseException:
                del trainer  # it holds the model
                self._place.give_up()
                raise
        self.at_work, self._learnt = True, None

    def rest(self, *, stays: bool) -> None:
        """Leave the devices to the other one; with `stays` the base weights are kept in host memory."""
        self._learnt = self._now()
        self.at_work = False
        if stays:
            self.trainer.forget_moments()
        self._place.leave(stays=stays)


def prefix_of(expert: Expert) -> str:
    """Returns what stands before the names of what a saved step holds of an expert."""
    return _LOW_NOISE if expert.name == EXPERTS[1] and expert.run.both else ""


def saved_of(saved: SavedStep | None, run: OpenRun) -> Learnt | None:
    """Returns what a saved step holds of the model of `run`; None for one that the run does not train."""
    if saved is None or not run.trained:
        return None
    state = saved.read_state()
    if not run.both:
        return Learnt(state, saved.progress, saved.lora_file.read_bytes())
    index = EXPERTS.index(run.config.train.expert)
    step, file = saved.expert_steps[index], (saved.lora_file, saved.low_noise_lora_file)[index]
    own = {
        name.removeprefix(_LOW_NOISE): value
        for name, value in state.items()
        if name.startswith(_LOW_NOISE) == bool(index)
    }
    return Learnt(own, {"step": step}, file.read_bytes()) if step and file is not None else None
