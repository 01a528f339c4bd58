"""One model of a run: at work, resting or not loaded; and what it has learnt, which a saved step holds."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor

from ..errors import CheckpointError
from ..events import Event
from ..files import Roots
from ..lora import LoraWeights, exported
from ..model import WanTransformer
from ..placement.host import host_bytes
from ..placement.room import release_cached_memory, weights_out_of_the_way
from ..precision import QuantizedBy, quantized_by
from ..train import EXPERTS, SavedStep, Trainer
from ..train.meters import MemoryReading
from .loading import Loaded, Planned
from .open import OpenRun

__all__ = ["Expert", "Learnt", "State", "host_holds", "prefix_of", "saved_of"]

_LOW_NOISE = "low_noise."
"""before the names of what a saved step of both experts holds of the second one"""

_HOST_RESERVE = 2 << 30
"""bytes of host memory that are left to everybody else"""

State = dict[str, Tensor]


@dataclass(frozen=True)
class Learnt:
    """What a model has learnt, in host memory."""

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
        # Earlier versions also saved in the middle of a streak of steps that were not finite; those changed nothing.
        return int(self.progress["step"]) - int(self.progress.get("bad_in_a_row", 0))


class Expert:
    """One model of a run: at work, resting, or not loaded; and what it has learnt."""

    def __init__(self, run: OpenRun, saved: Learnt | None) -> None:
        """`saved`: what to go on from."""
        self.run, self.name = run, run.config.train.expert
        self.loaded: Loaded | None = None
        self.planned: Planned | None = None
        """how it is trained here, once that is known"""
        self.at_work = self.rehearsed = False
        self._learnt = saved
        self._away = ExitStack()
        quantize = run.config.model.quantize
        self.quantized_by: QuantizedBy | None = (
            None if quantize is None else quantized_by(quantize, run.file.compute_dtype)
        )
        """the mark of the 8-bit weights of its base; None where they are not made here"""

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
        try:
            if self.loaded is None:
                self.loaded, self.rehearsed = load(self._learnt is None), False
            else:
                self._away.close()
            if self._learnt is not None:
                self.trainer.load_state(self._learnt.state, self._learnt.progress)
        except BaseException:
            self._give_up()
            raise
        self.at_work, self._learnt = True, None

    def rest(self, *, stays: bool) -> None:
        """Leave the devices to the other one; with `stays` the base weights are kept in host memory."""
        self._learnt = self._now()
        self.at_work = False
        if stays:
            self.trainer.forget_moments()
            assert self.loaded is not None
            self._away.enter_context(weights_out_of_the_way(self.loaded.model, trained=True))
            release_cached_memory()
        else:
            self._give_up()

    def _give_up(self) -> None:
        """Gives up the model; it is read from its files when it is needed again."""
        self.loaded = None
        gc.collect()
        release_cached_memory()


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
    step, file = _expert_steps(saved)[index], (saved.lora_file, saved.low_noise_lora_file)[index]
    own = {
        name.removeprefix(_LOW_NOISE): value
        for name, value in state.items()
        if name.startswith(_LOW_NOISE) == bool(index)
    }
    return Learnt(own, {"step": step, "bad_in_a_row": 0}, file.read_bytes()) if step and file is not None else None


def _expert_steps(saved: SavedStep) -> list[int]:
    """Returns how far each of both experts was at a saved step. Raises CheckpointError where it does not say so."""
    found: Any = saved.progress.get("expert_steps")
    if isinstance(found, list):
        steps = [n for n in cast("list[Any]", found) if type(n) is int and n >= 0]
        if len(steps) == len(EXPERTS) and sum(steps) == saved.step:
            return steps
    raise CheckpointError(
        f"Saved step {saved.step} does not say how far each expert is. Resume from an older saved step."
    )


def host_holds(leaving: WanTransformer, coming: int, processes: int = 1) -> bool:
    """Whether host memory holds what a model has on accelerators, beside the `coming` bytes of another one there.

    `processes`: how many share that memory and ask the same.
    """
    free = host_bytes()
    tensors = (*leaving.parameters(), *leaving.buffers())
    resting = sum(one.nbytes for one in tensors if one.device.type != "cpu")
    return free is not None and resting + coming + _HOST_RESERVE <= free // processes
