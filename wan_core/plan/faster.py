"""Uses free memory to shorten a step: activations are kept instead of recomputed.

In the order of time saved for each byte: attention outputs (an eighth of the arithmetic), larger chunks of tokens
(fewer kernels), blocks without checkpointing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import torch

from ..model import CHUNK_TOKENS, Policy
from ..placement import FreeMemory, MemoryEstimate
from ..train import TrainConfig
from .cards import Card, card_of, unknown_card
from .choices import largest
from .step_time import step_seconds
from .workload import Workload

ATTENTION_IN_RAM = Policy(offloaded=frozenset({"attn_output"}))
_CHUNKS = (0, 16_384, 8_192)
"""tokens of a chunk, tried from the largest on; 0: all tokens"""
_LEAST_GAIN = 0.01
"""least share of a step's time that a further measure must save"""
_UNSURE = 0.03
"""share of a card's memory that larger chunks and unchecked blocks leave free: predictions were up to 2.2 % too low"""
_MARGIN = 0.2
"""share added to the activations of unchecked blocks: 1.3B without checkpointing took 43.0 GiB on an H200, 38.1 were
predicted"""

Plan = tuple[Workload, MemoryEstimate]


def may_keep_attention(train: TrainConfig) -> bool:
    """Returns whether the settings let the planner choose what activation checkpointing keeps."""
    return train.checkpointing_policy == "auto" and train.gradient_checkpointing and not train.compile


def fastest(
    job: Workload,
    room: FreeMemory,
    estimate: MemoryEstimate,
    choose: Callable[[Workload], MemoryEstimate],
    card: Card | None,
) -> tuple[Workload, MemoryEstimate, float]:
    """Returns a job that fits with the settings of its fastest step, the estimate, and the share of time that it saves.

    `estimate`: of `job` as it is. `choose(job)`: the estimate under the fewest measures that fit.
    """
    first = torch.device(next(iter(estimate.devices)))
    card = card or card_of(first, job) or unknown_card(str(first))

    def seconds(plan: Plan) -> float:
        of, found = plan
        count = of.micro_batches if len(found.devices) > 1 else 1
        return step_seconds(of.shape(), of.step, found, card, micro_batches=count, target_share=of.target_share) / count

    before: Plan = (job, estimate)
    plan = before
    if may_keep_attention(job.train):
        plan = _with_attention(plan, room, choose, seconds)
    spare = replace(room, devices={name: int((1 - _UNSURE) * free) for name, free in room.devices.items()})
    if room.devices and job.chunk_tokens is None:
        plan = _with_larger_chunks(plan, spare)
    if room.devices and may_keep_attention(job.train):
        plan = _with_unchecked(plan, spare)
    return *plan, 0.0 if plan is before else max(0.0, 1 - seconds(plan) / seconds(before))


def _with_attention(
    plan: Plan, room: FreeMemory, choose: Callable[[Workload], MemoryEstimate], seconds: Callable[[Plan], float]
) -> Plan:
    """Returns the plan with attention outputs kept, so that attention is not recomputed.

    They are kept on the card if they fit without other measures; else in host memory, or with more swapped blocks, if
    a step is faster with that.
    """
    job, estimate = plan
    on_card = replace(job, train=replace(job.train, checkpointing_policy="attn_output"))
    kept = on_card, on_card.estimate(on_card.shape(), estimate.measures)
    if not room.lacks(kept[1]):
        return kept
    found = [(on_card, choose(on_card))]
    if job.train.offload_activations != "off":
        names = ("attn_output",)
        train = replace(job.train, checkpointing_policy="custom", checkpointing_names_offloaded=names)
        in_ram = replace(job, train=train)
        found.append((in_ram, choose(in_ram)))
    found = [one for one in found if not room.lacks(one[1])]
    if not found:
        return plan
    best = min(found, key=lambda one: (round(seconds(one), 2), one[1].host))
    return best if seconds(best) < (1 - _LEAST_GAIN) * seconds(plan) else plan


def _with_larger_chunks(plan: Plan, room: FreeMemory) -> Plan:
    job, estimate = plan
    shape = job.shape()
    rows = job.step.batch_size * max(shape.on_card(job.step, card).own_tokens for card in range(shape.cards))
    if rows <= CHUNK_TOKENS or estimate.measures.chunk_tokens != CHUNK_TOKENS:
        return plan
    for chunk in (one for one in _CHUNKS if one < rows):
        found = job.estimate(shape, replace(estimate.measures, chunk_tokens=chunk))
        if not room.lacks(found):
            return job, found
    return plan


def _with_unchecked(plan: Plan, room: FreeMemory) -> Plan:
    job, estimate = plan
    measures, layers = estimate.measures, job.file.variant.shape.num_layers
    if job.train.unchecked_blocks or job.train.blocks_to_swap > 0 or measures.offload_inputs or measures.blocks_to_swap:
        return plan

    @cache
    def unchecked(count: int) -> Plan | None:
        tried = replace(job, train=replace(job.train, unchecked_blocks=count))
        found = tried.estimate(tried.shape(), measures)
        more = {name: _MARGIN * (one.kept - estimate.devices[name].kept) for name, one in found.devices.items()}
        tight = replace(room, devices={name: int(free - more[name]) for name, free in room.devices.items()})
        return None if tight.lacks(found) else (tried, found)

    count = largest(layers, lambda count: unchecked(count) is not None)
    return (unchecked(count) if count else None) or plan
