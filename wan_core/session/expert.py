"""One trained model of a run, and its trained state: adapters and optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..errors import CheckpointError
from ..events import Event
from ..job.open import OpenRun
from ..lora import LoraWeights, exported
from ..model import CHUNK_TOKENS, WanTransformer
from ..placement import SharedMemory
from ..plan.here import Planned, plan_training
from ..precision import QuantizedBy, quantized_by
from ..train import EXPERTS, SavedStep, Trainer
from ..train.meters import MemoryReading
from .devices import Placed
from .loading import load_model, make_trainer
from .session import Session

_LOW_NOISE = "low_noise."
"""prefix of the low noise expert's entries in a saved step"""

State = dict[str, Tensor]


@dataclass(frozen=True)
class TrainedState:
    """The trained state of one model, in host memory."""

    state: State
    """trained adapters and optimizer"""
    progress: dict[str, Any]
    """counters of the trainer"""
    lora: Mapping[str, Tensor] | bytes
    """the weights to save, evaluate and preview, or the LoRA file of a saved step"""

    @property
    def evaluated_weights(self) -> LoraWeights:
        """The weights to evaluate and preview, float32: the EMA or the optimizer's average if any, else the trained."""
        names = [name.removeprefix("lora.") for name in self.state if name.startswith("lora.")]
        if not names:
            raise CheckpointError("The saved step holds no LoRA. Choose another one.")
        kinds = ("ema.", "judged.", "lora.")  # a frozen part of the LoRA has no average
        return LoraWeights({n: next(self.state[k + n] for k in kinds if k + n in self.state) for n in names})

    @property
    def step(self) -> int:
        """The last finite step."""
        return int(self.progress["step"])


class Expert(Placed):
    """One trained model of a run: on the devices, offloaded or not loaded; and its trained state."""

    def __init__(self, session: Session, run: OpenRun, saved: TrainedState | None) -> None:
        """`session`: its `emit` takes the events of this model. `saved`: the state to resume from."""
        super().__init__(run, self._load)
        self.session, self.name = session, run.config.train.expert_name
        self._planned: Planned | None = None
        self._shared: SharedMemory | None = None
        self._trainer: Trainer | None = None
        self.rehearsed = False
        self._state = saved
        quantize = run.config.model.quantize
        self.quantized_by: QuantizedBy | None = (
            None if quantize is None else quantized_by(quantize, run.file.compute_dtype)
        )
        """how the base is quantized at load; None if it is used as stored"""

    def plan_memory(self, partner: OpenRun | None, shared: SharedMemory | None) -> None:
        """Choose memory measures for the model. Every rank calls it. Raises OutOfMemory if none suffice."""
        chunk = None if self._state is None else int(self._state.progress.get("chunk_tokens", CHUNK_TOKENS))
        self._planned, remark = plan_training(self.run, self.session.group, partner, shared, chunk_tokens=chunk)
        self._shared, self._host = shared, self._planned.host
        self.session.note(remark)

    @property
    def planned(self) -> Planned:
        assert self._planned is not None, "nothing is planned yet"
        return self._planned

    @property
    def trainer(self) -> Trainer:
        """The trainer of a model that is loaded."""
        assert self._trainer is not None
        return self._trainer

    def hear(self, event: Event) -> None:
        """Compare an event with the prediction, if there is one."""
        if self.planned.measured is not None:
            self.planned.measured.hear(event)

    def end_phase(self, stage: str) -> MemoryReading:
        """Returns the memory of its devices since the previous phase, with the prediction for `stage`."""
        reading, measured = self.trainer.meters.end_phase(), self.planned.measured
        return measured.predicted_beside(stage, reading) if measured else reading

    @property
    def planned_bytes(self) -> int | None:
        """Planned bytes of a step on its fullest device; None without a plan."""
        measured = self.planned.measured
        return max(measured.of_a_step().values(), default=None) if measured else None

    def keep_measured(self) -> None:
        """Keep the measured memory for the next plan on this machine."""
        # After a fallback, more is offloaded than planned, so the measured memory does not belong to the plan.
        if self.planned.measured and not self.trainer.relief.used_fallback:
            self.planned.measured.keep(self.run.roots)

    @property
    def step(self) -> int:
        """Optimizer steps of this model."""
        return self.trainer.step if self.on_device else self._offloaded_step

    @property
    def good_step(self) -> int:
        """The last finite step of this model."""
        return self.trainer.good_step if self.on_device else self._offloaded_step

    @property
    def _offloaded_step(self) -> int:
        return self._state.step if self._state is not None else 0

    @property
    def total(self) -> int:
        """Steps of this model in the complete run."""
        return self.run.config.train.steps

    @property
    def chunk_tokens(self) -> int:
        """Largest number of tokens that a block of this model computes at once while it trains."""
        if self.on_device:
            return self.model.chunk_tokens
        return CHUNK_TOKENS if self._state is None else int(self._state.progress.get("chunk_tokens", CHUNK_TOKENS))

    def trained_state(self) -> TrainedState | None:
        """Returns the trained state; None before the first finite step."""
        found = self._now() if self.on_device else self._state
        return found if found is not None and found.step else None

    def _now(self) -> TrainedState:
        with self.trainer.optimizer.evaluated_weights():
            lora = exported(self.model)
        return TrainedState(self.trainer.state(), self.trainer.progress(), lora)

    def enter(self) -> None:
        """Load the model and its trained state. After an error the trained state is kept."""
        super().enter()
        if self._state is not None:
            try:
                self.trainer.load_state(self._state.state, self._state.progress)
            except BaseException:
                self.drop()
                raise
        self._state = None

    def leave(self, *, offload: bool) -> None:
        """Free the devices; the trained state is kept in host memory either way."""
        self._state = self._now()
        if offload:
            self.trainer.optimizer.forget()
        super().leave(offload=offload)

    def drop(self) -> None:
        self._trainer, self.rehearsed = None, False
        super().drop()

    def _load(self) -> WanTransformer:
        model = load_model(self.session, self.run, self.planned, with_start=self._state is None, shared=self._shared)
        self._trainer = make_trainer(self.session, self.run, model, self.planned)
        return model


def prefix_of(expert: Expert) -> str:
    """Returns the prefix of an expert's entries in a saved step."""
    return _LOW_NOISE if expert.name == EXPERTS[1] and expert.run.both else ""


def saved_of(saved: SavedStep | None, run: OpenRun) -> TrainedState | None:
    """Returns the trained state of the model of `run` in a saved step; None if it holds none."""
    if saved is None or not run.trained:
        return None
    state = saved.read_state()
    if not run.both:
        return TrainedState(state, saved.progress, saved.lora_file.read_bytes())
    index = EXPERTS.index(run.config.train.expert_name)
    step, file = saved.expert_steps[index], (saved.lora_file, saved.low_noise_lora_file)[index]
    own = {
        name.removeprefix(_LOW_NOISE): value
        for name, value in state.items()
        if name.startswith(_LOW_NOISE) == bool(index)
    }
    if not step or file is None:
        return None
    chunk = saved.progress.get(f"{_LOW_NOISE if index else ''}chunk_tokens", CHUNK_TOKENS)
    return TrainedState(own, {"step": step, "chunk_tokens": chunk}, file.read_bytes())
