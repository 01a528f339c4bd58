"""The time of an optimizer step, from its arithmetic and from the bytes that travel beside it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import nn

from ..abilities import abilities_of
from ..model import Numerics, WanShape, WanTransformer
from ..placement import JobShape, MemoryEstimate, StepShape
from ..placement.cards import card_limit
from ..train import FlopCount, StepFlops
from .memory_job import Job
from .own_runs import SECONDS

_REACHED = 0.6
"""the share of its peak that a step is taken to reach: an assumption for cards that gpu_check.py has not measured"""
_HOPPER = 0.46
"""the share that a step of 14B reached on an H200, in bf16 (benchmarks/results/gpu_check_H200_2026-11.md)"""
_STAND_IN = 100e12
"""products and sums a second of a card that is in no table"""
_COPIES = 25e9
"""bytes a second between pinned host memory and a card in a PCIe 4 slot of 16 lanes, each way"""


@dataclass(frozen=True)
class Card:
    """A kind of GPU."""

    name: str
    gibibytes: int
    bf16: float
    """products and sums a second in bf16, summed in float32, as its maker says it"""
    reached: float = _REACHED
    """the share of them that a step reaches"""


CARDS = (
    Card("RTX 4070", 12, 58.3e12),
    Card("RTX 4080", 16, 97.5e12),
    Card("RTX 3090", 24, 71.0e12),
    Card("RTX 4090", 24, 165.2e12),
    Card("RTX 5090", 32, 209.5e12),
    Card("RTX 6000 Ada", 48, 364.2e12),
    Card("A100", 80, 312.0e12),
    Card("H100", 80, 989.0e12, _HOPPER),
    Card("H200", 141, 989.0e12, _HOPPER),
)


_OTHERS = (
    Card("RTX 3060", 12, 25.5e12),
    Card("RTX 3080", 10, 59.5e12),
    Card("RTX 4060 Ti", 16, 44.1e12),
    Card("RTX 4070 Ti", 12, 80.2e12),
    Card("RTX 4070 SUPER", 12, 71.0e12),
    Card("RTX 4070 Ti SUPER", 16, 88.2e12),
    Card("RTX 4080 SUPER", 16, 104.4e12),
    Card("RTX 5060 Ti", 16, 47.4e12),
    Card("RTX 5070", 12, 61.7e12),
    Card("RTX 5070 Ti", 16, 87.9e12),
    Card("RTX 5080", 16, 112.6e12),
    Card("RTX A6000", 48, 154.8e12),
    Card("L40S", 48, 362.0e12),
    Card("H100 PCIe", 80, 756.0e12, _HOPPER),
)
"""known by name; those above also stand for their size"""
_OTHER_CARD = frozenset({"Ti", "SUPER", "Laptop", "D", "Max"})
"""words behind a number that make it another card"""


def card_named(device_name: str) -> Card | None:
    """Returns the card that a driver calls so, for example "NVIDIA GeForce RTX 4090"; None where it is not known."""
    words = re.split(r"[\s-]+", device_name)
    known = sorted((*CARDS, *_OTHERS), key=lambda card: -len(card.name.split()))
    return next((card for card in known if _within(card.name.split(), words)), None)


def unknown_card(device_name: str) -> Card:
    """Returns a stand-in for a card of which nothing is known: times on it mean something only beside measured ones."""
    return Card(device_name, 0, _STAND_IN)


def card_of_size(gibibytes: float) -> Card:
    """Returns the fastest of the smallest cards that have so much memory; the largest where none has."""
    fits = [card for card in CARDS if card.gibibytes >= gibibytes - 0.5] or [CARDS[-1]]
    return max((card for card in fits if card.gibibytes == fits[0].gibibytes), key=lambda card: card.bf16)


def card_of(device: torch.device, job: Job | None = None) -> Card | None:
    """Returns the kind of GPU a device is, as far as it is known; where the CPU plays a card, one of that size.

    A card that is in no table is known by what runs such as `job` reached on it.
    """
    if device.type == "cuda":
        name = abilities_of(device).name
        known = card_named(name)
        return unknown_card(name) if known is None and job is not None and job.ratio(str(device), SECONDS) else known
    limit = card_limit()
    return None if limit is None else card_of_size(limit)


def _within(name: list[str], words: list[str]) -> bool:
    """Returns whether a card is called so, and is no other one: a larger, or a slower one of that number."""
    ends = [i + len(name) for i in range(len(words)) if words[i : i + len(name)] == name]
    return any(not _OTHER_CARD & {*words[end:]} for end in ends)


def step_seconds(
    job: JobShape,
    step: StepShape,
    estimate: MemoryEstimate,
    card: Card,
    *,
    micro_batches: int,
    prior_share: float = 0.0,
) -> float:
    """Returns the seconds of an optimizer step of `micro_batches` on such a card, or on several that take turns.

    Copies run beside the arithmetic; they count where they take longer. For `prior_share` of the clips the base model
    runs forward once more.
    """
    flops, speed = _flops(job, step), card.bf16 * card.reached
    checked = job.shape.num_layers - job.recomputing.unchecked
    recomputed = flops.recomputed * checked / job.shape.num_layers
    policy = job.recomputing.policy
    if "attn_output" in policy.saved | policy.offloaded:
        pairs = sum(tokens**2 for tokens in job.tokens(step)[:checked])
        recomputed -= 4.0 * step.batch_size * pairs * job.shape.dim
    forward = flops.forward / speed
    backward = (flops.backward + recomputed * job.recomputing.blocks) / speed
    weights = sum(estimate.streamed.values()) / _COPIES
    inputs = estimate.inputs / _COPIES
    target = prior_share * max(flops.base / speed, weights)
    return micro_batches * (target + max(forward, weights, inputs) + max(backward, weights + inputs))


def step_tflops(
    job: JobShape, step: StepShape, estimate: MemoryEstimate, card: Card, prior_share: float = 0.0
) -> float:
    """Returns the useful arithmetic per second, in 10^12, that `step_seconds` takes a step to reach."""
    flops, seconds = (
        _flops(job, step),
        step_seconds(job, step, estimate, card, micro_batches=1, prior_share=prior_share),
    )
    return (flops.useful + prior_share * flops.base) / seconds / 1e12


def _flops(job: JobShape, step: StepShape) -> StepFlops:
    """Returns the operations of a micro-batch."""
    latent = (
        step.batch_size,
        job.shape.out_channels,
        step.latent_frames,
        step.latent_height,
        step.latent_width,
    )
    image_rows = (job.shape.image_positions or 257) if job.shape.image_dim else 0
    count = _counted(job.shape, job.numerics, job.adapt)
    return count.of(torch.Size(latent), time_rows=1, image_rows=image_rows, text_rows=step.text_rows, routes=job.routes)


@lru_cache(maxsize=4)
def _counted(shape: WanShape, numerics: Numerics, adapt: Callable[[nn.Module], None]) -> FlopCount:
    """Returns what counts the operations of such a model, for clips of any size."""
    with torch.device("meta"):
        model = WanTransformer(shape, numerics)
    model.requires_grad_(False)
    adapt(model)
    return FlopCount(model)
