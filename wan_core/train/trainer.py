"""The training step: micro-steps to gradients, gradients to an update. Owns optimizer and step count.

All random draws come from generators named by (seed, purpose, micro-step), so the resume state is adapters, optimizer
and the step number.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from ..accelerator import backend_of
from ..cache import Batches, BatchReader
from ..control import Control
from ..errors import Stopped
from ..events import Emit, Evaluated, Note
from ..flow import seeded_generator
from ..kernels import later_remarks
from ..lora import LoraWeights, adapter_parameters, limit_norms
from ..model import CHUNK_TOKENS, WanTransformer, check_compile, models_of, placed_routes, scope, shared_out
from ..parallel import ShardedBlocks
from ..parallel.schedule import Schedule
from ..placement import BlockOffload, Recomputing
from ..precision import float32_products, fused_on_cards
from .at_once import CardsAtOnce
from .config import TrainConfig
from .draws import Draws
from .evaluation import Evaluation
from .group import Group
from .learning_rate import learning_rate_at, rates_sentence, scaled_to_batch
from .meters import DeviceMeters, StepReport
from .objective import NoisedBatch, Objective
from .optimizer_bytes import check_room
from .optimizer_state import AdapterOptimizer
from .recovery import LossScale, Relief, Streak


class Trainer:
    """Trains the adapters of a materialized model; saving, evaluation and previews are the caller's."""

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
        recomputing: Recomputing | None = None,
        predicted_memory: Mapping[str, int] | None = None,
    ) -> None:
        """`first_frame_share`: share of clips whose first latent frame is given (TI2V); 0 for other models.

        `recomputing`: a plan's choice of checkpointed blocks; None: that of `config`.
        `predicted_memory`: predicted peak bytes of a step by device name; None: no prediction.
        """
        group = group or Group()
        config, scaled = scaled_to_batch(config, group.batches)
        self.model, self.batches, self.config = model, batches, config
        self.step, self._streak = 0, Streak(config.max_bad_steps, emit)
        self.is_complete = True
        """False after an optimizer update that failed half-way; weights and optimizer state must then not be saved"""
        self.parameters, self._scale = adapter_parameters(model), LossScale(config.loss_scaling)
        for note in (scaled, rates_sentence(self.parameters, config)):
            if note and group.leads:
                emit(Note(text=note))
        self._objective = Objective(model, config)
        self._emit, self._control, self._group = emit, control, group
        self._remarked = set[str]()
        self.optimizer = AdapterOptimizer(self.parameters, config, then=partial(limit_norms, model))
        self._device = next(model.parameters()).device
        self.meters = DeviceMeters((p.device for one in models_of(model) for p in one.parameters()), predicted_memory)
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
        pin = backend_of(self._device).late_copies
        self._reader = BatchReader(self._draws.at, ahead=config.prefetch_batches, pin=pin)
        self._evaluation = Evaluation(
            model,
            batches,
            config,
            self._objective.evaluated,
            sigma_range=sigma_range,
            first_frame_share=first_frame_share,
            emit=emit,
            check=self._end_evaluation_if_stopped,
            alone=group.parts == 1,
        )
        self._at_once = CardsAtOnce(model, self._objective, self._report, self._scale, check=self._end_if_stopped)
        self.relief = Relief(model, emit, alone=group.world == 1)
        recomputing = recomputing or config.recomputing
        model.checkpoint_blocks, model.checkpoint_policy = recomputing.blocks, recomputing.policy
        model.unchecked_blocks = recomputing.unchecked
        for one in cast("tuple[WanTransformer, ...]", models_of(model)):
            if config.compile:
                check_compile(next(one.parameters()).device)
                one.compile_blocks()
            for said in fused_on_cards(one, runs=config.batch_size > 1 or first_frame_share > 0):
                if group.leads:
                    emit(Note(text=said))

    def state(self) -> dict[str, Tensor]:
        """Returns the resume state as CPU tensors: adapters (float32), optimizer, loss scale."""
        adapters = {f"lora.{name}": value for name, value in LoraWeights.of(self.model).tensors.items()}
        return adapters | self.optimizer.state() | self._scale.state()

    @property
    def device(self) -> torch.device:
        """The device of the model's first weights."""
        return self._device

    @property
    def bad_in_a_row(self) -> int:
        """Number of most recent steps that were not finite; if above 0, the weights may be unusable."""
        return self._streak.length

    @property
    def good_step(self) -> int:
        """The last finite step: its weights are the current ones."""
        return self.step - self.bad_in_a_row

    def progress(self) -> dict[str, Any]:
        """Returns the counters to save with `state`: the last finite step, so that a resume retries the later ones, and
        the chunk size in tokens unless it is CHUNK_TOKENS."""
        chunk = self.model.chunk_tokens
        return {"step": self.good_step} | ({} if chunk == CHUNK_TOKENS else {"chunk_tokens": chunk})

    def load_state(self, state: dict[str, Tensor], progress: dict[str, Any]) -> None:
        """Resume from `state` and `progress`."""
        adapters = {k.removeprefix("lora."): v for k, v in state.items() if k.startswith("lora.")}
        LoraWeights(adapters).load_into(self.model, "The resume state")
        self.step = int(progress["step"])
        self.model.run_in_chunks(int(progress.get("chunk_tokens", CHUNK_TOKENS)))
        self._streak.end()
        self._scale.load(state)
        if self.step:
            self.optimizer.load(state)

    def run(self, last_step: int, between_steps: Callable[[int], bool | None]) -> bool:
        """Trains up to and including `last_step`, and beyond it until a step is finite.

        `between_steps(step)` runs after each step, on every rank; if it returns True, so does this method, at once.
        Raises Stopped between micro-steps, which drops the unfinished step, and NotFinite at the limit of a streak.
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
        """Computes, applies and reports one step; a step that is not finite changes neither weights nor optimizer."""
        began = time.monotonic()
        norm, loss, timestep = self._computed(step)
        self.step = step
        if not (math.isfinite(norm) and math.isfinite(loss)):
            self._forget_gradients()
            self._streak.add(step, "gradients" if math.isfinite(loss) else "loss")
            return
        self._streak.end()
        self._scale.count()
        self.is_complete = False
        with scope("optimizer"):
            lr = self.optimizer.step(learning_rate_at(step, self.config))
        self.is_complete = True
        self._forget_gradients()
        self._report.finish(step, loss=loss, lr=lr, grad_norm=norm, timestep=timestep, began=began)
        self._remark()

    def _remark(self) -> None:
        """Emits each warning once: kernels replaced by their fallback, host memory that is short."""
        remarks = {said: said for said in later_remarks()} | self.optimizer.remarks
        for one in models_of(self.model):
            if isinstance(offload := one.offload, BlockOffload | ShardedBlocks):
                remarks |= offload.remarks
        for topic, said in remarks.items():
            if topic not in self._remarked:
                self._remarked.add(topic)
                self._emit(Note(text=said, level="warning"))

    def _computed(self, step: int) -> tuple[float, float, float]:
        """Returns gradient norm, loss and mean timestep of a step over all ranks; leaves clipped gradients in `.grad`.

        Retries with less memory after out of memory, with half the loss scale after an overflow. Raises Stopped, and
        torch.OutOfMemoryError after the last measure.
        """
        with self._together():
            return self._computed_together(step)

    def _computed_together(self, step: int) -> tuple[float, float, float]:
        first_factor, memory_ran_out = self._scale.factor, False
        self._raise_if_stopped()
        while True:
            try:
                with float32_products(self.model.numerics.float32_products):
                    loss, timestep = self._accumulated(step)
                check_room(self.optimizer)  # An update that runs out of memory half-way could not be retried.
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
                # This is a collective. The norm is averaged, so either every rank gets here or none.
                self._raise_if_stopped()
                memory_ran_out = False
                continue
            # Called outside of the handler, because its exception keeps the tensors of the attempt alive.
            self._forget_gradients()
            self.relief.make_room(step, full, stronger=memory_ran_out)
            memory_ran_out = True
        if not math.isfinite(norm):  # The norm is not finite at scale 1 either, so the loss scale was not the cause.
            self._scale.factor = first_factor
        return norm, mean_loss, timestep

    def _together(self) -> contextlib.AbstractContextManager[None]:
        """Inside, ranks with sharded weights run the same blocks in the same order."""
        offload = self.model.offload
        return offload.together() if isinstance(offload, ShardedBlocks) else contextlib.nullcontext()

    def wait_for_leader(self) -> None:
        """Waits, after the last step, until the leader has saved and previewed alone. Every rank calls it."""
        if isinstance(self.model.offload, ShardedBlocks):
            self.model.offload.serve()

    def _accumulated(self, step: int) -> tuple[Tensor, float]:
        """Accumulates the gradients of this rank's micro-batches; returns mean loss (a scalar) and mean timestep."""
        count = self.config.gradient_accumulation_steps
        self._report.begin()
        draws = count * self._draws.per_micro_step
        first, loss_sum, timestep_sum = (step - 1) * draws, torch.zeros((), device=self._device), 0.0
        if (schedule := self._schedule(draws)) is not None:
            drawn = [self._reader.at(first + index) for index in range(draws)]
            loss = self._at_once.accumulated(schedule, drawn, partial(self._seed, first), of=count)
            return loss, sum(draw.timestep for draw in drawn) / draws
        for index in range(draws):
            self._end_if_stopped()
            with scope("batch"):
                batch, timestep = self._draw(first + index)
            timestep_sum += timestep
            if isinstance(sharded := self.model.offload, ShardedBlocks):
                # Gathers the blocks for ranks that run more target passes than this one.
                for _ in range(self._draws.most_target_passes(first + index) - len(batch.target.passes)):
                    sharded.gather_all()
            elif not batch.target.counts:
                continue
            with scope("forward"):
                trained = self._objective.trained(batch)
            with scope("backward"):
                self._scale.scale(trained.loss / count).backward()
            self._report.add_work(batch)
            self._report.add_loss(trained)
            loss_sum += trained.loss.detach() / count
        return loss_sum, timestep_sum / draws

    def _clipped(self, loss: Tensor) -> tuple[float, float]:
        """Averages loss and gradients over ranks, and clips the gradients; returns the norm before clipping, the loss.

        It is the only place of a step where the host waits for the device. The values cannot be read one step later,
        because the host must skip the update if they are not finite.
        """
        parameters = list(self.parameters.values())
        if self.model.team is not None:
            self.model.team.sum_gradients()
        self._scale.unscale(parameters)
        self._group.average([*(p.grad for p in parameters if p.grad is not None), loss])
        norm = torch.nn.utils.clip_grad_norm_(parameters, self.config.max_grad_norm or math.inf)
        if self.config.max_grad_value:
            torch.nn.utils.clip_grad_value_(parameters, self.config.max_grad_value)
        read = self.optimizer.read(torch.stack((norm.to(loss), loss, *self._report.prior_errors)))
        norm, mean_loss, *self._report.read_errors = read
        return norm, mean_loss

    def _draw(self, number: int) -> tuple[NoisedBatch, float]:
        """Returns the micro-batch of a draw of this rank, and its mean timestep."""
        draw = self._reader.at(number)
        if self.model.checkpoint_keeps_rng:  # The model has dropout.
            self._seed(number)
        batch = draw.noised(self._device)
        if self._draws.rolls:
            lowest = 0.0 if isinstance(self.model.offload, ShardedBlocks) else float(draw.sigma.min())
            batch = self._objective.rolled(batch, lowest)
        return batch, draw.timestep

    def _schedule(self, draws: int) -> Schedule | None:
        """Returns the order of a step's draws over several cards; None where they work in turn."""
        return None if self._draws.rolls else self._at_once.schedule(draws)

    def _seed(self, number: int, more: int = 0) -> None:
        """Seeds torch's global generators, from which dropout draws, for one draw of this rank."""
        place = self._draws.place(number + more)
        torch.manual_seed(seeded_generator(self.config.seed, "dropout", place).initial_seed())

    def _raise_if_stopped(self) -> None:
        """Raises Stopped on every rank if the leader has a stop request."""
        if reason := self._group.share(self._control.stop_reason() if self._group.leads else ""):
            raise Stopped(reason)

    def _end_if_stopped(self) -> None:
        """Raises Stopped between micro-steps; with several ranks, `_raise_if_stopped` checks between attempts."""
        if self._group.world == 1 and (reason := self._control.stop_reason()):
            raise Stopped(reason)

    def _end_evaluation_if_stopped(self) -> None:
        """Raises Stopped on every evaluating rank if there is a stop request."""
        if self._group.parts > 1:
            self._raise_if_stopped()
        elif reason := self._control.stop_reason():
            raise Stopped(reason)

    def _forget_gradients(self) -> None:
        for parameter in self.parameters.values():
            parameter.grad = None
        if self.model.team is not None:
            self.model.team.forget_gradients()

    def _outlast_streak(self) -> None:
        """After the last step, computes further steps without an update until one is finite, so the weights are good.

        Raises NotFinite at `max_bad_steps`, as between steps.
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
        """Whether there are clips and timesteps to evaluate on."""
        return self._evaluation.possible

    def evaluate(self) -> Evaluated | None:
        """Returns the evaluation loss; None without clips or memory for it.

        Every rank calls it if ranks share clips: the ranks of each clip evaluate the same clips.
        """
        together = self._together() if self._group.parts > 1 else contextlib.nullcontext()
        with self.optimizer.evaluated_weights(), shared_out(self.model), together:
            return self._evaluation.measure(self.step)

    def rehearse(self) -> None:
        """Runs the largest micro-batch forward and backward, so that memory runs out here and not hours later.

        Raises torch.OutOfMemoryError after the last measure.
        """
        largest = self._draws.largest()
        count = self.config.gradient_accumulation_steps * self._draws.per_micro_step
        for tries in itertools.count():
            try:
                with self._together():
                    if (schedule := self._schedule(self._at_once.rehearsed(count))) is not None:
                        drawn = [largest] * schedule.micro_batches
                        self._at_once.accumulated(schedule, drawn, self._seed, of=count)
                    else:
                        self._objective.trained(largest.noised(self._device)).loss.backward()
                break
            except RuntimeError as error:
                full = self.relief.caught(self.step + 1, error)
            self._forget_gradients()
            self.relief.make_room(self.step + 1, full, stronger=tries > 0)
        self._forget_gradients()
