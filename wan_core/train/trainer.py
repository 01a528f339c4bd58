"""The training loop: micro-steps to gradients, gradients to a step, steps to events. Owns optimizer and step count.

Everything random is drawn from generators named by (seed, purpose, micro-step), so the state of a run is its adapters,
its optimizer and one number: the step.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.profiler import record_function

from ..cache import Batches, BatchReader
from ..control import Control
from ..errors import Stopped
from ..events import Emit, Evaluated, Note
from ..flow import draw_noise, seeded_generator
from ..lora import LoraWeights, adapter_parameters, limit_norms
from ..model import WanTransformer, check_compile, placed_routes
from .config import TrainConfig
from .draws import Draws, passages_of
from .evaluation import Evaluation
from .group import Group
from .loss_scale import LossScale
from .meters import DeviceMeters
from .noised import NoisedBatch, TargetFunction, noise_batch, true_velocity
from .objective import Objective
from .optimizer_state import AdapterOptimizer
from .rates import rates_told
from .relief import Relief
from .schedule import learning_rate_at, scaled_to_batch
from .step_report import StepReport
from .streak import Streak


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
        target: TargetFunction = true_velocity,
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
        self._objective, self._first_frame_share = Objective(model, config, target), first_frame_share
        self._emit, self._control, self._group = emit, control, group
        self._optimizer = AdapterOptimizer(self.parameters, config, then=partial(limit_norms, model))
        self._device = next(model.parameters()).device
        self.meters = DeviceMeters((p.device for p in model.parameters()), predicted_memory)
        self._report = StepReport(model, config, self.meters, group, emit, batches_per_epoch=batches.batches_per_epoch)
        self._routes = placed_routes(config.routes, model.shape.num_layers)
        self._draws = Draws(
            batches,
            empty_text,
            config,
            self._group,
            sigma_range=sigma_range,
            first_frame_share=first_frame_share,
            routes=self._routes,
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
        self._relief = Relief(model, emit)
        model.checkpoint_blocks, model.checkpoint_policy = config.gradient_checkpointing, config.keeps
        model.unchecked_blocks = config.unchecked_blocks
        if config.compile:
            check_compile(self._device)
            model.compile_blocks()

    def state(self) -> dict[str, Tensor]:
        """Returns the adapters as they are trained, float32, and what the optimizer holds, as CPU tensors."""
        adapters = {f"lora.{name}": value for name, value in LoraWeights.of(self.model).tensors.items()}
        return adapters | self._optimizer.state() | self._scale.state()

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

    def judged(self) -> AbstractContextManager[None]:
        """Returns what evaluations, previews and the LoRA file are made in: it holds the weights that count.

        They are the trained ones, but for a mean of them: ours (EMA) or that of the optimizer.
        """
        return self._optimizer.judged()

    def load_state(self, state: dict[str, Tensor], progress: dict[str, Any]) -> None:
        """Continue exactly where `state` and `progress` were taken."""
        adapters = {k.removeprefix("lora."): v for k, v in state.items() if k.startswith("lora.")}
        LoraWeights(adapters).load_into(self.model, "The resume state")
        self.step = int(progress["step"])
        self._streak.end()
        self._scale.load(state)
        if self.step:
            self._optimizer.load(state)

    def forget_moments(self) -> None:
        """Give up the optimizer's memory, of which `state` has a copy; `load_state` brings it back."""
        self._optimizer.forget()

    def run(self, last_step: int, between_steps: Callable[[int], bool | None]) -> bool:
        """Train up to and including `last_step`, and on to the end of a streak of steps that were not finite.

        Returns whether it left before that: it does where `between_steps` answers True, so that nothing here holds the
        model any longer. Raises Stopped between micro-steps when asked to; the step begun is then dropped and `step` is
        the last finished one. Raises NotFinite when a streak does not end: in it nothing is known of the weights.
        """
        self._reader.start()
        try:
            return self._run(last_step, between_steps)
        finally:
            self._reader.stop()

    def _run(self, last_step: int, between_steps: Callable[[int], bool | None]) -> bool:
        while self.step < last_step or (self.bad_in_a_row and self.step < self.config.steps):
            started = time.monotonic()
            self._apply(self.step + 1, *self._tried(self.step + 1), started)
            if between_steps(self.step):
                return True
        if self.bad_in_a_row:
            self._outlast_streak()
            return bool(between_steps(self.step))
        return False

    def _tried(self, step: int) -> tuple[float, float, float]:
        """Returns (norm of the gradients, loss, mean timestep) of a step; its gradients lie in `.grad`, clipped."""
        return self._scale.fitted(lambda: self._measured(*self._attempt(step)), self._forget_gradients)

    def _attempt(self, step: int) -> tuple[Tensor, float]:
        """Returns what `_gradients` does, which leaves them in `.grad`. Raises Stopped where a stop is asked for."""
        reason = self._group.share(self._control.stop_reason() if self._group.leads else "")
        if reason:
            raise Stopped(reason)
        try:
            return self._relief.attempt(step, lambda: self._gradients(step), self._forget_gradients)
        except Stopped:
            self._forget_gradients()
            raise

    def _outlast_streak(self) -> None:
        """Tries the steps that would come next, without training, where the last ones were not finite.

        One finite loss and gradient says that the weights are good: the run is done, if anything was trained. A streak
        that reaches `max_bad_steps` here ends the run as it does between steps.
        """
        tries = 0
        while self._streak.length:
            tries += 1
            norm, mean_loss, _ = self._tried(self.step + tries)
            self._forget_gradients()
            if math.isfinite(norm) and math.isfinite(mean_loss) and self.good_step:
                self._streak.end()
            else:
                self._streak.check_tries(tries, self.step)

    @property
    def on_gpu(self) -> bool:
        """Whether the memory of a device may run out that is not the computer's own."""
        return self._device.type != "cpu"

    @property
    def gave_way(self) -> bool:
        """Whether memory ran out, and the run takes stronger measures by now than it was planned with."""
        return self._relief.gave_way

    @property
    def evaluates(self) -> bool:
        """Whether there is anything to evaluate on."""
        return self._evaluation.possible

    def evaluate(self) -> Evaluated | None:
        """Returns the loss on fixed clips, noise and timesteps; the same numbers for every run on these clips."""
        with self.judged():
            return self._evaluation.measure(self.step)

    def rehearse(self) -> None:
        """Runs the largest micro-batch forward and backward and forgets it.

        What does not fit shows now, and not after an evaluation and a preview. Raises torch.OutOfMemoryError where
        nothing more can be given up.
        """
        batch = self.batches.load([self.batches.largest_item] * self.config.batch_size)
        size, frames = len(batch.latents), batch.latents.shape[2]
        given = torch.ones(size, dtype=torch.bool) if self._first_frame_share and frames > 1 else None
        noise = draw_noise(batch.latents.shape, seeded_generator("rehearsal"))
        passages = passages_of(batch, self._routes, "rehearsal")
        noised = noise_batch(batch, noise, torch.full((size,), 0.5), batch.texts, self._device, given, passages)
        trained = partial(self._objective.trained, noised)
        self._relief.attempt(self.step + 1, lambda: trained().loss.backward(), self._forget_gradients)
        self._forget_gradients()

    def _gradients(self, step: int) -> tuple[Tensor, float]:
        """Sum the gradients of one step's micro-batches; mean loss (scalar tensor) and mean timestep."""
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

    def _draw(self, micro_step: int) -> tuple[NoisedBatch, float]:
        """Returns the micro-batch of this rank and its mean timestep."""
        draw = self._reader.at(micro_step)
        if self.model.checkpoint_keeps_rng:
            place = self._draws.place(micro_step)
            torch.manual_seed(seeded_generator(self.config.seed, "dropout", place).initial_seed())
        batch = draw.batch
        noised = noise_batch(batch, draw.noise, draw.sigma, batch.texts, self._device, draw.given, draw.passages)
        return noised, draw.timestep

    def _apply(self, step: int, norm: float, mean_loss: float, timestep: float, started: float) -> None:
        """Check, update and report one step; a non-finite one is skipped whole."""
        self.step = step
        if not (math.isfinite(norm) and math.isfinite(mean_loss)):
            self._forget_gradients()
            self._streak.add(step, "loss" if not math.isfinite(mean_loss) else "gradients")
            return
        self._streak.end()
        self._scale.count()
        self._relief.attempt(step, self._optimizer.check_room, lambda: None)
        with record_function("wan: optimizer"):
            lr = self._optimizer.step(learning_rate_at(step, self.config))
        self._forget_gradients()
        self._report.tell(step, loss=mean_loss, lr=lr, grad_norm=norm, timestep=timestep, began=started)

    def _measured(self, loss: Tensor, timestep: float) -> tuple[float, float, float]:
        """(norm of the gradients, loss), both over all ranks, and the timestep; the gradients are clipped."""
        parameters = list(self.parameters.values())
        self._scale.lower(parameters)
        self._group.average_gradients(parameters)
        self._group.average([loss])
        limit = self.config.max_grad_norm or math.inf
        return float(torch.nn.utils.clip_grad_norm_(parameters, limit)), float(loss), timestep

    def _forget_gradients(self) -> None:
        for parameter in self.parameters.values():
            parameter.grad = None
