"""The training loop: micro-steps to gradients, gradients to a step, steps to events. Owns optimizer and step count.

Everything random is drawn from generators named by (seed, purpose, micro-step), so the state of a run is its adapters,
its optimizer and one number: the step.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.profiler import record_function

from ..cache import Batches, BatchReader
from ..control import Control
from ..errors import Stopped
from ..events import Emit, Evaluated, Note
from ..flow import seeded_generator
from ..lora import LoraWeights, adapter_parameters, limit_norms
from ..model import WanTransformer, check_compile, placed_routes
from .config import TrainConfig
from .draws import Draw, Draws
from .evaluation import Evaluation
from .group import Group
from .learning_rate import learning_rate_at, rates_told, scaled_to_batch
from .meters import DeviceMeters
from .objective import NoisedBatch, Objective, noise_batch
from .optimizer_bytes import check_room
from .optimizer_state import AdapterOptimizer
from .recovery import LossScale, Relief, Streak
from .step_report import StepReport


class Trainer:
    """Trains the adapters of a materialized model.

    `between_steps(step)` is called after every finished step, on every rank, with the number of that step; saving,
    evaluating and previewing are the caller's.
    """

    def __init__(
        self,
        model: WanTransformer,
        batches: Batches,
        empty_text: Tensor,
        config: TrainConfig,
        *,
        sigma_range: tuple[float, float] = (0.0, 1.0),
        first_frame_share: float = 0.0,
        emit: Emit,
        control: Control,
        group: Group | None = None,
        predicted_memory: Mapping[str, int] | None = None,
    ) -> None:
        """`first_frame_share`: of the clips whose first latent frame is given clean (TI2V); 0 for other models.

        `predicted_memory`: bytes at the peak of a step by device name, as far as they are known.
        """
        group = group or Group()
        config, scaled = scaled_to_batch(config, group.world)
        self.model, self.batches, self.config = model, batches, config
        self.step, self._streak = 0, Streak(config.max_bad_steps, emit)
        self.parameters, self._scale = adapter_parameters(model), LossScale(config.loss_scaling)
        for said in (scaled, rates_told(self.parameters, config)):
            if said and group.leads:
                emit(Note(text=said))
        self._objective = Objective(model, config)
        self._emit, self._control, self._group = emit, control, group
        self.optimizer = AdapterOptimizer(self.parameters, config, then=partial(limit_norms, model))
        self._device = next(model.parameters()).device
        self.meters = DeviceMeters((p.device for p in model.parameters()), predicted_memory)
        self._report = StepReport(model, config, self.meters, group, emit, batches_per_epoch=batches.batches_per_epoch)
        self._draws = Draws(
            batches,
            empty_text,
            config,
            group,
            sigma_range=sigma_range,
            first_frame_share=first_frame_share,
            routes=placed_routes(config.routes, model.shape.num_layers),
        )
        self._reader = BatchReader(self._draws, ahead=config.prefetch_batches, pin=self._device.type == "cuda")
        self._evaluation = Evaluation(
            model,
            batches,
            config,
            self._objective.evaluated,
            sigma_range=sigma_range,
            first_frame_share=first_frame_share,
            emit=emit,
            control=control,
        )
        self.relief = Relief(model, emit)
        model.checkpoint_blocks, model.checkpoint_policy = config.gradient_checkpointing, config.keeps
        model.unchecked_blocks = config.unchecked_blocks
        if config.compile:
            check_compile(self._device)
            model.compile_blocks()

    def state(self) -> dict[str, Tensor]:
        """Returns the adapters as they are trained, float32, and what the optimizer holds, as CPU tensors."""
        adapters = {f"lora.{name}": value for name, value in LoraWeights.of(self.model).tensors.items()}
        return adapters | self.optimizer.state() | self._scale.state()

    @property
    def bad_in_a_row(self) -> int:
        """How many steps, up to the last one, were not finite; while there are any, nothing is known of the weights."""
        return self._streak.length

    @property
    def good_step(self) -> int:
        """The step whose weights these are: steps that were not finite since then changed nothing."""
        return self.step - self.bad_in_a_row

    def progress(self) -> dict[str, Any]:
        """Returns the counters that belong to `state`.

        They are those of the last good step, so that a resume tries the others again.
        """
        return {"step": self.good_step}

    def load_state(self, state: dict[str, Tensor], progress: dict[str, Any]) -> None:
        """Continue exactly where `state` and `progress` were taken."""
        adapters = {k.removeprefix("lora."): v for k, v in state.items() if k.startswith("lora.")}
        LoraWeights(adapters).load_into(self.model, "The resume state")
        self.step = int(progress["step"])
        self._streak.end()
        self._scale.load(state)
        if self.step:
            self.optimizer.load(state)

    def run(self, last_step: int, between_steps: Callable[[int], bool | None]) -> bool:
        """Train up to and including `last_step`, and on to the end of a streak of steps that were not finite.

        Returns whether it left before that: it does where `between_steps` answers True, so that nothing here holds the
        model any longer. Raises Stopped between micro-steps when asked to; the step begun is then dropped and `step` is
        the last finished one. Raises NotFinite when a streak does not end: in it nothing is known of the weights.
        """
        self._reader.start()
        try:
            while self.step < last_step or (self.bad_in_a_row and self.step < self.config.steps):
                self._train_step(self.step + 1)
                if between_steps(self.step):
                    return True
            if not self.bad_in_a_row:
                return False
            self._outlast_streak()
            return bool(between_steps(self.step))
        finally:
            self._reader.stop()

    def _train_step(self, step: int) -> None:
        """Computes, applies and reports one step; one that is not finite leaves weights and optimizer as they are."""
        began = time.monotonic()
        norm, loss, timestep = self._computed(step)
        self.step = step
        if not (math.isfinite(norm) and math.isfinite(loss)):
            self._forget_gradients()
            self._streak.add(step, "gradients" if math.isfinite(loss) else "loss")
            return
        self._streak.end()
        self._scale.count()
        with record_function("wan: optimizer"):
            lr = self.optimizer.step(learning_rate_at(step, self.config))
        self._forget_gradients()
        self._report.tell(step, loss=loss, lr=lr, grad_norm=norm, timestep=timestep, began=began)

    def _computed(self, step: int) -> tuple[float, float, float]:
        """Returns gradient norm, loss and mean timestep of a step over all ranks; clipped gradients lie in `.grad`.

        What runs out of memory is tried again with less, what overflows with half the loss scale. Raises Stopped, and
        torch.OutOfMemoryError where nothing more can be given up.
        """
        first_factor, memory_ran_out = self._scale.factor, False
        self._raise_if_stopped()
        while True:
            try:
                loss, timestep = self._accumulated(step)
                check_room(self.optimizer)  # an update that ended half-way could not be tried again
            except Stopped:
                self._forget_gradients()
                raise
            except RuntimeError as error:
                full = self.relief.caught(step, error)
            else:
                norm, mean_loss = self._clipped(loss)
                overflowed = math.isfinite(mean_loss) and not math.isfinite(norm)
                if not (overflowed and self._scale.halve()):
                    break
                self._forget_gradients()
                self._raise_if_stopped()  # every rank has seen the same norm, so all of them meet here
                memory_ran_out = False
                continue
            # Outside of the handler, which keeps the tensors of the attempt.
            self._forget_gradients()
            self.relief.make_room(step, full, stronger=memory_ran_out)
            memory_ran_out = True
        if not math.isfinite(norm):  # they were not too large but wrong
            self._scale.factor = first_factor
        return norm, mean_loss, timestep

    def _accumulated(self, step: int) -> tuple[Tensor, float]:
        """Sums the gradients of this rank's micro-batches; returns mean loss, a scalar tensor, and mean timestep."""
        count = self.config.gradient_accumulation_steps
        loss_sum, timestep_sum = torch.zeros((), device=self._device), 0.0
        self._report.begin()
        for index in range(count):
            if self._group.world == 1 and (reason := self._control.stop_reason()):
                raise Stopped(reason)
            with record_function("wan: batch"):
                batch, timestep = self._draw((step - 1) * count + index)
            timestep_sum += timestep
            with record_function("wan: forward"):
                trained = self._objective.trained(batch)
            with record_function("wan: backward"):
                self._scale.raised(trained.loss / count).backward()
            self._report.add(batch, trained)
            loss_sum += trained.loss.detach() / count
        return loss_sum, timestep_sum / count

    def _clipped(self, loss: Tensor) -> tuple[float, float]:
        """Averages loss and gradients over all ranks and clips; returns the norm before clipping, and the loss."""
        parameters = list(self.parameters.values())
        self._scale.lower(parameters)
        self._group.average_gradients(parameters)
        self._group.average([loss])
        limit = self.config.max_grad_norm or math.inf
        return float(torch.nn.utils.clip_grad_norm_(parameters, limit)), float(loss)

    def _draw(self, micro_step: int) -> tuple[NoisedBatch, float]:
        """Returns the micro-batch of this rank and its mean timestep."""
        draw = self._reader.at(micro_step)
        if self.model.checkpoint_keeps_rng:
            place = self._draws.place(micro_step)
            torch.manual_seed(seeded_generator(self.config.seed, "dropout", place).initial_seed())
        return self._noised(draw), draw.timestep

    def _noised(self, draw: Draw) -> NoisedBatch:
        return noise_batch(draw.batch, draw.noise, draw.sigma, self._device, draw.given, draw.passages)

    def _raise_if_stopped(self) -> None:
        """Raises Stopped on every rank where the leader is asked to stop."""
        if reason := self._group.share(self._control.stop_reason() if self._group.leads else ""):
            raise Stopped(reason)

    def _forget_gradients(self) -> None:
        for parameter in self.parameters.values():
            parameter.grad = None

    def _outlast_streak(self) -> None:
        """Computes the steps that would come next, without training, where the last ones were not finite.

        One finite loss and gradient says that the weights are good: the run is done, if anything was trained. A streak
        that reaches `max_bad_steps` here ends the run as it does between steps.
        """
        tries = 0
        while self._streak.length:
            tries += 1
            norm, loss, _ = self._computed(self.step + tries)
            self._forget_gradients()
            if math.isfinite(norm) and math.isfinite(loss) and self.good_step:
                self._streak.end()
            else:
                self._streak.check(self.step, "loss or gradients", tries)

    @property
    def on_gpu(self) -> bool:
        return self._device.type != "cpu"

    @property
    def evaluates(self) -> bool:
        """Whether there is anything to evaluate on."""
        return self._evaluation.possible

    def evaluate(self) -> Evaluated | None:
        """Returns the loss on fixed clips, noise and timesteps; the same numbers for every run on these clips."""
        with self.optimizer.judged():
            return self._evaluation.measure(self.step)

    def rehearse(self) -> None:
        """Runs the largest micro-batch forward and backward, so that what does not fit shows before the first preview.

        Raises torch.OutOfMemoryError where nothing more can be given up.
        """
        batch = self._noised(self._draws.largest())
        for tries in itertools.count():
            try:
                self._objective.trained(batch).loss.backward()
                break
            except RuntimeError as error:
                full = self.relief.caught(self.step + 1, error)
            self._forget_gradients()
            self.relief.make_room(self.step + 1, full, stronger=tries > 0)
        self._forget_gradients()
