"""Plans the memory of a job before anything is encoded or loaded: the measures it takes, and whether it fits.

Nothing is read but headers. What does not fit is refused in one sentence that says what would.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import torch

from ..errors import OutOfMemory
from ..placement import JobShape, MemoryEstimate, MemoryMeasures, Room, StepShape, choose_measures
from ..train import TrainConfig
from ..words import filled
from .cards import Card, card_of, unknown_card
from .memory_job import Job, size_words
from .own_runs import SECONDS, Measured, card_name
from .step_time import step_seconds, step_tflops

_RANKS, _SMALLER = (16, 8, 4), (1.0, 0.75, 0.5)
"""of width and height, tried from the largest on where not even one frame fits"""


@dataclass(frozen=True, kw_only=True)
class MemoryPlan:
    """The memory a job takes, with the measures that were chosen for it, beside what there is."""

    job: Job
    room: Room
    estimate: MemoryEstimate

    @property
    def fits(self) -> bool:
        return not self.room.lacks(self.estimate)

    @property
    def measures(self) -> MemoryMeasures:
        return self.estimate.measures

    @property
    def policy(self) -> str:
        """What checkpointing keeps besides the inputs of blocks, by its name; none where it is off."""
        train = self.job.train
        if not train.gradient_checkpointing:
            return "none"
        return "full" if train.checkpointing_policy == "auto" else train.checkpointing_policy

    def own_runs(self) -> dict[str, dict[str, float]]:
        """Returns, for each device, the ratio of each phase that runs on this machine have changed the plan by."""
        job, runs = self.job, self.job.own_runs
        if not runs.ratios:
            return {}
        found = {
            name: runs.phases_of(card_name(name), job.file.variant.name, job.scheme) for name in self.estimate.devices
        }
        return {name: phases for name, phases in found.items() if phases}

    @property
    def card(self) -> Card | None:
        """The first card of the job, as far as it is known."""
        return card_of(torch.device(next(iter(self.estimate.devices))), self.job)

    def seconds(self, card: Card) -> float:
        """Returns the seconds of an optimizer step on `card`, corrected by earlier runs on this machine."""
        job, micro_batches = self.job, self.job.train.gradient_accumulation_steps
        seconds = step_seconds(
            job.shape(), job.step, self.estimate, card, micro_batches=micro_batches, prior_share=job.prior_share
        )
        return seconds * (job.ratio(next(iter(self.estimate.devices)), SECONDS) or 1.0)

    def measured(self) -> Measured:
        """Returns what compares a run with this plan. Never on the CPU: a plan counts other things there."""
        job, first = self.job, next(iter(self.estimate.devices))
        card = None if torch.device(first).type == "cpu" else self.card or unknown_card(first)
        return Measured(
            variant=job.file.variant.name,
            scheme=job.scheme,
            predicted={name: memory.phases for name, memory in self.estimate.devices.items() if name != "cpu"},
            followed=self.own_runs(),
            tflops=None if card is None else step_tflops(job.shape(), job.step, self.estimate, card, job.prior_share),
        )

    def remark(self) -> str:
        """Returns what a user should know of the measures; "" where none is taken."""
        taken: list[str] = []
        if self.measures.offload_inputs:
            taken.append("what gradient checkpointing keeps rests in host memory")
        if count := self.measures.blocks_to_swap:
            taken.append(f"{count} blocks do too, and travel to the GPU when they run")
        host = f"{self.estimate.host / 2**30:.1f} GiB of host memory are needed."
        return f"So that it fits, {', and '.join(taken)}: {host}" if taken else ""

    def check(self) -> None:
        """Raises OutOfMemory where the job does not fit: needed, free, and the nearest size that does."""
        if self.job.train.memory != "manual" and not self.fits:
            raise OutOfMemory(self.verdict())

    def verdict(self) -> str:
        """Returns whether it fits in one sentence; where it does not, with what is needed, free, and would fit."""
        if self.fits:
            return "It fits."
        place, needed, free = self.room.lacks(self.estimate)[0]
        return filled(
            "{variant} at rank {rank} needs {needed} GiB on {place} with every measure that memory auto may "
            "take, and {free} GiB are free. {advice}",
            variant=size_words(self.job.file.variant, self.job.step),
            rank=self.job.lora.rank,
            needed=f"{needed / 2**30:.1f}",
            place=place,
            free=f"{free / 2**30:.1f}",
            advice=self._advice(),
        )

    def _advice(self) -> str:
        if self.job.preview is not None and plan_memory(replace(self.job, preview=None), self.room).fits:
            words = size_words(self.job.file.variant, self.job.preview)
            return filled(
                "Without previews of {words} it fits: set a smaller one in Wan Preview Settings.", words=words
            )
        if batch := _largest_batch(self.job, self.room):
            return filled(
                "With batch_size {batch} it fits: set that, with more gradient_accumulation_steps.", batch=batch
            )
        found = nearest_that_fits(self.job, self.room)
        if found is not None:
            return filled(
                "Nearest that fits: {variant} at rank {rank}.",
                variant=size_words(self.job.file.variant, found.step),
                rank=found.lora.rank,
            )
        if self.job.model.quantize is None and self.job.file.quantization == "none":
            return "Nothing smaller fits: put Fp8 / Int8 Quantize behind the model, or choose a smaller one."
        return "Nothing smaller fits: choose a smaller model, or close what else uses the memory."


def plan_memory(job: Job, room: Room) -> MemoryPlan:
    """Returns the plan of a job whose devices have `room`; nothing is refused yet (`MemoryPlan.check`)."""
    return _with_attention_kept(MemoryPlan(job=job, room=room, estimate=_chosen(job, job.shape(), room)))


def rest_alike(measures: Iterable[MemoryMeasures]) -> bool:
    """Returns whether the same blocks rest in host memory under all of these: so that their weights can lie there once.

    Of 14 and 20 blocks out of 40 only some are the same, so that even the larger number would be too few to count.
    """
    return len({one.blocks_to_swap for one in measures}) == 1


def without_a_plan(train: TrainConfig) -> TrainConfig:
    """Returns the settings of a job that nothing limits: what `auto` leaves open is what is fastest."""
    return replace(train, checkpointing_policy="attn_output") if _may_keep_attention(train) else train


def _may_keep_attention(train: TrainConfig) -> bool:
    return train.checkpointing_policy == "auto" and train.gradient_checkpointing and not train.compile


def _with_attention_kept(plan: MemoryPlan) -> MemoryPlan:
    """Returns the plan with attention computed once instead of twice, where that asks for no further measure.

    It saves a tenth to a fifth of the arithmetic; nothing else that could be kept saves as much for its memory.
    """
    job = plan.job
    if job.train.memory == "manual" or not _may_keep_attention(job.train) or not plan.fits:
        return plan
    shape = job.shape()
    of_a_token = job.step.batch_size * shape.shape.dim * shape.numerics.compute.itemsize
    for device in shape.placement.devices:
        on_device = zip(shape.tokens(job.step), shape.placement.block_devices, strict=True)
        more = of_a_token * sum(tokens for tokens, one in on_device if one == device)
        room = plan.room.devices.get(str(device))
        if room is not None and plan.estimate.devices[str(device)].step + more > room:
            return plan  # not worth a trace
    kept = replace(job, train=replace(job.train, checkpointing_policy="attn_output"))
    estimate = kept.estimate(kept.shape(), plan.measures)
    found = replace(plan, job=kept, estimate=estimate)
    return found if found.fits else plan


def asked_measures(train: TrainConfig) -> MemoryMeasures:
    """Returns the measures that the settings say themselves; what they leave to the planner is not taken."""
    return MemoryMeasures(
        offload_inputs=_offloads(train) and train.gradient_checkpointing,
        blocks_to_swap=max(train.blocks_to_swap, 0),
    )


def _offloads(train: TrainConfig) -> bool:
    """Returns whether the settings send something to host memory: all that is kept, or what a policy names."""
    return train.offload_activations == "on" or bool(train.keeps.offloaded)


def nearest_that_fits(job: Job, room: Room) -> Job | None:
    """Returns the job with as many frames as fit; with a smaller picture or rank where not even one frame does.

    None where nothing does.
    """
    ranks = (job.lora.rank, *(rank for rank in _RANKS if rank < job.lora.rank))
    least = replace(job, lora=replace(job.lora, rank=ranks[-1]), step=_scaled(job.step, _SMALLER[-1]), preview=None)
    if not _fits_with(1, least, least.shape(), room):
        return None  # asked first, because the way there is long
    for rank in ranks:
        ranked = replace(job, lora=replace(job.lora, rank=rank))
        shape = ranked.shape()
        for factor in _SMALLER:
            smaller = replace(ranked, step=_scaled(job.step, factor), preview=None)
            most = _most_frames(smaller, shape, room)
            if most:
                return replace(smaller, step=replace(smaller.step, latent_frames=most))
    return None


@dataclass(frozen=True)
class _Free:
    """The choices that the settings leave to the planner; a value is taken as it is, None is its choice."""

    offload: bool | None
    swap: int | None
    most_blocks: int

    @classmethod
    def of(cls, train: TrainConfig, shape: JobShape) -> _Free:
        asked, layers = asked_measures(train), shape.shape.num_layers + len(shape.shape.vace_layers)
        asked = replace(asked, blocks_to_swap=min(asked.blocks_to_swap, layers))
        if train.memory == "manual":
            return cls(asked.offload_inputs, asked.blocks_to_swap, 0)
        # A block that keeps its activations needs its weights where they are.
        movable = train.gradient_checkpointing and not train.unchecked_blocks
        open_to_us = train.gradient_checkpointing and train.offload_activations == "auto" and not _offloads(train)
        return cls(
            offload=None if open_to_us else asked.offload_inputs,
            swap=None if movable and train.blocks_to_swap < 0 else asked.blocks_to_swap,
            most_blocks=layers if movable else 0,
        )

    @property
    def strongest(self) -> MemoryMeasures:
        """What takes the least of a device."""
        offload = True if self.offload is None else self.offload
        return MemoryMeasures(
            offload_inputs=offload, blocks_to_swap=self.most_blocks if self.swap is None else self.swap
        )


def _chosen(job: Job, shape: JobShape, room: Room) -> MemoryEstimate:
    free = _Free.of(job.train, shape)
    return choose_measures(
        lambda measures: job.estimate(shape, measures),
        room,
        offload=free.offload,
        swap=free.swap,
        most_blocks=free.most_blocks,
    )


def _scaled(step: StepShape, factor: float) -> StepShape:
    height, width = (max(2, int(side * factor) // 2 * 2) for side in (step.latent_height, step.latent_width))
    return replace(step, latent_height=height, latent_width=width)


def _most_frames(job: Job, shape: JobShape, room: Room) -> int:
    """Returns the most latent frames, at most those of the job, with which it fits; 0 where one does not."""
    return _most(job.step.latent_frames, lambda frames: _fits_with(frames, job, shape, room))


def _largest_batch(job: Job, room: Room) -> int:
    """Returns the most clips in a forward pass, fewer than those of the job, with which it fits; 0 where none do."""
    shape, frames = job.shape(), job.step.latent_frames

    def fits(count: int) -> bool:
        return _fits_with(frames, replace(job, step=replace(job.step, batch_size=count)), shape, room)

    return _most(job.step.batch_size - 1, fits)


def _most(highest: int, fits: Callable[[int], bool]) -> int:
    """Returns the largest of 1 to `highest` that fits; 0 where none does. What fits goes on fitting with less."""
    if highest < 1 or not fits(1):
        return 0
    few, many = 1, highest + 1
    while many - few > 1:
        middle = (few + many) // 2
        few, many = (middle, many) if fits(middle) else (few, middle)
    return few


def _fits_with(frames: int, job: Job, shape: JobShape, room: Room) -> bool:
    """Returns whether so many latent frames fit with the strongest measures that are open."""
    tried = replace(job, step=replace(job.step, latent_frames=frames))
    return not room.lacks(tried.estimate(shape, _Free.of(job.train, shape).strongest))
