"""Plans the memory of a job before anything is encoded or loaded: the measures it takes, and whether it fits.

Only headers of files are read. The refusal of a job that does not fit names the nearest job that does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from ..accelerator import gpu_names
from ..errors import OutOfMemory
from ..model import CHUNK_TOKENS
from ..model.heads import shares
from ..placement import FreeMemory, JobShape, MemoryEstimate, MemoryMeasures, StepShape
from ..train import TrainConfig
from ..words import counted, filled
from .cards import Card, CardCost, card_of, unknown_card
from .choices import fewest_measures, largest, strongest_measures
from .faster import ATTENTION_IN_RAM, fastest, may_keep_attention
from .measured_ratios import SECONDS, Measured, card_name
from .step_time import LINK, exchanged_bytes, step_flops, step_seconds, step_work
from .workload import Workload, size_words

_RANKS, _SMALLER = (16, 8, 4), (1.0, 0.75, 0.5)
"""ranks, and scales of width and height, tried in this order if not even one frame fits"""
_WORTH_SAYING = 0.01
"""least share of a step's time that is reported as saved"""


@dataclass(frozen=True, kw_only=True)
class MemoryPlan:
    """The predicted memory of a job, with the measures chosen for it, and the free memory."""

    job: Workload
    room: FreeMemory
    estimate: MemoryEstimate
    gain: float = 0.0
    """share of a step's predicted time saved by using left-over memory (`faster.py`)"""

    @property
    def fits(self) -> bool:
        return not self.room.lacks(self.estimate)

    @property
    def measures(self) -> MemoryMeasures:
        return self.estimate.measures

    @property
    def policy(self) -> str:
        """The name of the checkpointing policy; "none" if checkpointing is off."""
        train = self.job.train
        if not train.gradient_checkpointing:
            return "none"
        if train.keeps == ATTENTION_IN_RAM:
            return "offload_attn_output"
        return "full" if train.checkpointing_policy == "auto" else train.checkpointing_policy

    def ratios_followed(self) -> dict[str, dict[str, float]]:
        """Returns by device and phase the ratios of earlier runs that the plan is corrected by."""
        job, runs = self.job, self.job.measured_ratios
        if not runs.ratios:
            return {}
        found = {
            name: runs.phases_of(card_name(name), job.file.variant.name, job.scheme) for name in self.estimate.devices
        }
        return {name: phases for name, phases in found.items() if phases}

    @property
    def card(self) -> Card | None:
        """The first card of the job; None for an unknown one."""
        return card_of(torch.device(next(iter(self.estimate.devices))), self.job)

    def cards(self, card: Card) -> Card | list[Card]:
        """Returns the card of each device of a split, where this machine has all of them, they are known and the first
        is `card`; else `card`."""
        here = {*gpu_names()}
        found = [card_of(torch.device(name), self.job) if name in here else None for name in self.estimate.devices]
        known = [one for one in found if one is not None]
        return known if len(known) == len(found) > 1 and known[0] == card else card

    def seconds(self, card: Card | Sequence[Card]) -> float:
        """Returns the seconds of an optimizer step, corrected by earlier runs. `card`: of each device, or the first."""
        job, cards = self.job, self.cards(card) if isinstance(card, Card) else card
        seconds = step_seconds(
            job.shape(),
            job.step,
            self.estimate,
            cards,
            micro_batches=job.micro_batches,
            target_share=job.target_share,
        )
        return seconds * (job.ratio(next(iter(self.estimate.devices)), SECONDS) or 1.0)

    def work(self) -> CardCost:
        """Returns the work of an optimizer step, all cards together."""
        job = self.job
        return step_work(job.shape(), job.step, self.estimate, job.micro_batches)

    def measured(self) -> Measured:
        """Returns the comparison of a run with this plan; the CPU is left out, if a plan counts other things."""
        job, shape, first = self.job, self.job.shape(), next(iter(self.estimate.devices))
        tflops = None
        if torch.device(first).type != "cpu":
            # The cards of a split work at once on several micro-batches, which changes the TFLOP/s of a step.
            count = job.micro_batches if len(self.estimate.devices) > 1 else 1
            flops, share = step_flops(shape, job.step), job.target_share
            cards = self.cards(self.card or unknown_card(first))
            seconds = step_seconds(shape, job.step, self.estimate, cards, micro_batches=count, target_share=share)
            tflops = count * (flops.useful + share * flops.base) / seconds / 1e12
        return Measured(
            variant=job.file.variant.name,
            scheme=job.scheme,
            predicted={name: memory.phases for name, memory in self.estimate.devices.items() if name != "cpu"},
            followed=self.ratios_followed(),
            tflops=tflops,
        )

    def remark(self) -> str:
        """Returns a sentence on offloading and block swap; "" without them."""
        taken: list[str] = []
        if self.measures.offload_inputs:
            taken.append("the inputs that activation checkpointing keeps are offloaded to host memory")
        if count := self.measures.blocks_to_swap:
            taken.append(f"{count} blocks are offloaded too, and streamed to the GPU when they run")
        host = f"{self.estimate.host / 2**30:.1f} GiB of host memory are needed."
        return f"So that it fits, {', and '.join(taken)}: {host}" if taken else ""

    @property
    def exchange(self) -> str:
        """One line on the bytes that cards exchange to split tokens; "" for one card."""
        shape = self.job.shape()
        if shape.cards == 1:
            return ""
        sent = self.job.micro_batches * sum(exchanged_bytes(shape, self.job.step))
        sends = f"sends {sent / 1e9:.1f} GB in a step"
        takes = f"{sent / LINK:.1f} s at {LINK / 1e9:.0f} GB/s."
        if shape.parts > 1:
            return (
                f"context parallel: each of {shape.cards} processes trains 1/{shape.cards} of every clip and {sends} "
                f"by {shape.exchange}, {takes}"
            )
        said = f"split tokens: each of {shape.cards} cards {sends}, {takes}"
        return f"{said} {self._shares(shape)}" if shape.shares else said

    def _shares(self, shape: JobShape) -> str:
        heads = shares(shape.shape.num_heads, shape.shares)
        of_cards = zip(self.estimate.devices, shape.shares, heads, strict=True)
        parts = [f"{name} {100 * one / sum(shape.shares):.0f} % and {own}" for name, one, own in of_cards]
        return f"Tokens and heads: {', '.join(parts)}."

    def faster(self) -> str:
        """Returns one line on the use of left-over memory and the time that it saves; "" if it saves none."""
        train, chunk, taken = self.job.train, self.measures.chunk_tokens, list[str]()
        if self.gain < _WORTH_SAYING:
            return ""
        if "attn_output" in train.keeps.names:
            taken.append(f"attention outputs in {'RAM' if train.keeps.offloaded else 'GPU memory'}")
        if train.unchecked_blocks:
            taken.append(f"all activations of {counted(train.unchecked_blocks, 'block')}")
        if not 0 < chunk <= CHUNK_TOKENS:
            taken.append(f"chunks of {f'{chunk:,}' if chunk else 'all'} tokens")
        return f"The plan keeps {', '.join(taken)}: {100 * self.gain:.0f} % faster." if taken else ""

    def check(self) -> None:
        """Raises OutOfMemory if the job does not fit, with needed and free memory and the nearest size that fits."""
        if self.job.train.memory != "manual" and not self.fits:
            raise OutOfMemory(self.verdict())

    def verdict(self) -> str:
        """Returns whether the job fits, in a sentence; if not, with needed and free memory, and what would fit."""
        if self.fits:
            return "It fits."
        place, needed, free = self.room.lacks(self.estimate)[0]
        return filled(
            "{variant} at rank {rank} needs {needed} GiB on {place} even with memory auto, but only "
            "{free} GiB are free. {advice}",
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
            return "Nothing smaller fits: put Fp8 / Int8 Quantize after the model, or choose a smaller one."
        return "Nothing smaller fits: choose a smaller model, or close other programs that use memory."


def plan_memory(job: Workload, room: FreeMemory, card: Card | None = None) -> MemoryPlan:
    """Returns the plan of a job for devices with `room` bytes free. A job that does not fit is not refused here, but by
    `MemoryPlan.check`.

    Of the measures that fit, the plan has the ones with the shortest predicted step on `card` (None: this machine's).
    """
    plan = MemoryPlan(job=job, room=room, estimate=fewest_measures(job, job.shape(), room))
    if not plan.fits or job.train.memory == "manual":
        return plan
    job, estimate, gain = fastest(job, room, plan.estimate, lambda one: fewest_measures(one, one.shape(), room), card)
    return MemoryPlan(job=job, room=room, estimate=estimate, gain=gain)


def offload_alike(measures: Iterable[MemoryMeasures]) -> bool:
    """Returns whether all of these offload the same blocks, so that processes can share their weights in host memory.

    Swapped blocks are spread over the model, so that 14 and 20 of 40 blocks have only some in common.
    """
    return len({one.blocks_to_swap for one in measures}) == 1


def without_a_plan(train: TrainConfig) -> TrainConfig:
    """Returns the settings of a job on devices without a memory limit: the fastest choice for `auto`."""
    return replace(train, checkpointing_policy="attn_output") if may_keep_attention(train) else train


def nearest_that_fits(job: Workload, room: FreeMemory) -> Workload | None:
    """Returns the job with as many frames as fit; with a smaller frame size or rank if no frame fits; else None."""
    ranks = (job.lora.rank, *(rank for rank in _RANKS if rank < job.lora.rank))
    least = replace(job, lora=replace(job.lora, rank=ranks[-1]), step=_scaled(job.step, _SMALLER[-1]), preview=None)
    if not _fits_with(1, least, least.shape(), room):
        return None  # checked first, because the search below is slow
    for rank in ranks:
        ranked = replace(job, lora=replace(job.lora, rank=rank))
        shape = ranked.shape()
        for factor in _SMALLER:
            smaller = replace(ranked, step=_scaled(job.step, factor), preview=None)
            most = largest(job.step.latent_frames, partial(_fits_with, job=smaller, shape=shape, room=room))
            if most:
                frames = max(most, job.file.variant.latent_frames(1))
                return replace(smaller, step=replace(smaller.step, latent_frames=frames))
    return None


def _scaled(step: StepShape, factor: float) -> StepShape:
    height, width = (max(2, int(side * factor) // 2 * 2) for side in (step.latent_height, step.latent_width))
    return replace(step, latent_height=height, latent_width=width)


def _largest_batch(job: Workload, room: FreeMemory) -> int:
    shape, frames = job.shape(), job.step.latent_frames

    def fits(count: int) -> bool:
        return _fits_with(frames, replace(job, step=replace(job.step, batch_size=count)), shape, room)

    return largest(job.step.batch_size - 1, fits)


def _fits_with(frames: int, job: Workload, shape: JobShape, room: FreeMemory) -> bool:
    """Returns whether this number of latent frames fits under the strongest measures that the settings allow."""
    least = job.file.variant.latent_frames(1)
    tried = replace(job, step=replace(job.step, latent_frames=max(frames, least)))
    return not room.lacks(tried.estimate(shape, strongest_measures(job, shape)))
