"""Chooses how the cards of a machine share a job: the mode `auto` of Split Across GPUs.

Each mode is planned for the same clips of one optimizer step, so that predicted seconds compare; the fastest mode that
fits is chosen. Cards count with all of their memory, including what other programs use now; host memory counts as far
as it is free.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import torch

from ..accelerator import is_gpu, planned_gpu
from ..errors import WanTrainerError
from ..placement import EXPERT_PER_GPU, FreeMemory, Placement, PlacementConfig, free_memory_of_cards
from ..placement.config import INTERLEAVED
from ..placement.plan import check_token_shares, split_blocks
from .cards import Card, card_of, card_of_size, unknown_card
from .planning import MemoryPlan, plan_memory
from .step_time import LINK
from .token_shares import shared_by_speed
from .workload import Workload

AUTO, UNPLANNED = "auto", "split blocks"
"""UNPLANNED: the mode if no device has a memory limit (CPU)"""
PER_GPU = "copy per GPU"
_ONE, _BLOCKS, TOKENS = "one device", "split blocks", "split tokens"
_GIB = 1 << 30
AS_QUICK = 0.01
"""least share of a step's time that a mode must save over an earlier mode of the list"""
PlanOf = Callable[[Workload], MemoryPlan | None]


@dataclass(frozen=True)
class Way:
    """A mode for one job: its plan and time, or why it is not possible."""

    mode: str
    plan: MemoryPlan | None = None
    seconds: float = math.inf
    """seconds of an optimizer step, on the same number of clips in every mode"""
    why_not: str = ""

    def __str__(self) -> str:
        if self.why_not:
            return f"{self.mode} {self.why_not}"
        said: list[str] = []
        if self.mode == _BLOCKS and self.plan is not None:
            split_at = self.plan.job.model.placement.split_at
            said += [f"split_at {split_at}"] if split_at != "auto" else []
            said += ["one micro-batch"] if self.plan.job.micro_batches == 1 else []
        if self.mode == TOKENS and self.plan is not None and self.plan.job.model.placement.shares:
            said.append(f"token_shares {self.plan.job.model.placement.token_shares}")
        about = f" ({', '.join(said)})" if said else ""
        return f"{self.mode} {in_seconds(self.seconds)}{about}"


def choose_mode(job: Workload, plan_of: PlanOf, cards: Mapping[str, Card] | None = None) -> MemoryPlan | None:
    """Returns the plan of a job in the fastest mode that fits, with the reason in `placement.chosen`.

    Where no mode fits, this is the mode that lacks the least memory; with a device that is no GPU, split blocks. None
    if nothing is planned (CPU). `plan_of(job)`: the plan of a job with a mode other than auto. `cards`: cards by
    device name; None: the cards of this machine that the job may use.
    """
    asked = job.model.placement
    names = asked.device_names() if cards is None else tuple(cards)
    first = replace(asked, mode=_BLOCKS)
    # The speed of a CPU is not known, so a CPU that the user lists with GPUs takes blocks.
    if len({*names}) < 2 or asked.split_at != "auto" or not all(map(is_gpu, names)):
        return plan_of(_placed(job, first))
    here = cards or _cards_of(job)
    ways = [_way(tried, why_not, here, plan_of) for tried, why_not in _jobs(job, here)]
    for even in [way for way in ways if way.mode == TOKENS and not asked.shares]:
        ways += _uneven(_placed(job, replace(asked, mode=TOKENS, devices=",".join(here))), even, here, plan_of)
    planned = [way for way in ways if way.plan is not None]
    if not planned:
        return plan_of(_placed(job, first))
    best = _best_of(planned)
    assert best.plan is not None
    chosen = _reason(best, [way for way in ways if way is not best])
    return replace(best.plan, job=_placed(best.plan.job, replace(best.plan.job.model.placement, chosen=chosen)))


def leaves_shares_open(job: Workload) -> bool:
    """Returns whether a job splits tokens over GPUs of several kinds, with the shares left to the planner."""
    asked = job.model.placement
    if asked.mode != TOKENS or asked.shares or not all(map(is_gpu, asked.device_names())):
        return False
    return len({*_cards_of(job).values()}) > 1


def share_tokens(job: Workload, plan_of: PlanOf, cards: Mapping[str, Card] | None = None) -> MemoryPlan | None:
    """Returns the plan of a job that splits tokens, with the fastest shares that fit; if none fit, those that lack
    the least memory. None if nothing is planned. Arguments as for `choose_mode`; raises what `plan_of` does."""
    here, even = cards or _cards_of(job), plan_of(job)
    if even is None:
        return None
    if job.model.placement.shares:
        return even
    first = _way(job, "", here, lambda _: even)
    return _best_of([first, *_uneven(job, first, here, plan_of)]).plan


def _uneven(job: Workload, even: Way, cards: Mapping[str, Card], plan_of: PlanOf) -> list[Way]:
    """Returns the job with token shares by speed and memory, if these differ from the equal shares of `even`."""
    found = None if even.plan is None else shared_by_speed(job, even.plan, [*cards.values()], plan_of)
    return [] if found is None else [_way(job, "", cards, lambda _: found)]


def _cards_of(job: Workload) -> dict[str, Card]:
    names = job.model.placement.device_names()
    return {name: card_of(torch.device(name), job) or unknown_card(name) for name in names}


def plan_on_cards(job: Workload, gibibytes: Sequence[float], mode: str) -> MemoryPlan:
    """Returns the plan of a job on assumed cards of the given GiB. Raises PlacementError for token_shares of another
    number of cards.
    """
    names = [str(planned_gpu(number)) for number in range(len(gibibytes))]
    cards = dict(zip(names, map(card_of_size, gibibytes), strict=True))
    sizes, layers = dict(zip(names, gibibytes, strict=True)), job.file.variant.shape.num_layers

    def plan_of(one: Workload) -> MemoryPlan:
        asked = one.model.placement
        used = [*names] if asked.mode in (_BLOCKS, TOKENS) else [min(names, key=lambda name: sizes[name])]
        if asked.mode == _ONE and asked.devices in names:
            used = [asked.devices]
        devices = [torch.device(name) for name in used]
        placement, others = Placement((devices[0],) * layers), tuple(devices[1:])
        if asked.mode == _BLOCKS:
            placement, others = split_blocks(devices, layers, asked.split_at, gibibytes), ()
        room = FreeMemory(devices={name: free_memory_of_cards([sizes[name]]).devices[names[0]] for name in used})
        here = _placed(one, replace(asked, devices="cpu"))  # ignores the GPUs of this machine
        slowest = min((cards[name] for name in used), key=lambda card: card.bf16)
        return plan_memory(replace(here, placement=placement, others=others), room, slowest)

    tried = _placed(job, replace(job.model.placement, mode=mode))
    tokens = mode == TOKENS or (mode == AUTO and len(names) > 1)
    check_token_shares(replace(job.model.placement, mode=TOKENS if tokens else mode), len(names))
    ways = {AUTO: choose_mode, TOKENS: share_tokens}
    found = ways[mode](tried, plan_of, cards) if mode in ways else plan_of(tried)
    assert found is not None, "every card has a memory limit"
    return found


def reason(placement: PlacementConfig) -> str:
    """Returns the line of a plan on the mode that `auto` chose; "" for a mode that was set."""
    return f"Split Across GPUs, auto: {placement.chosen}" if placement.chosen else ""


def _best_of(ways: Sequence[Way]) -> Way:
    """Returns the first of the ways that fit and are about as fast as the fastest; if none fits, the way that lacks
    the least memory."""
    fits = [way for way in ways if not way.why_not]
    if not fits:
        return min(ways, key=_lacking)
    quickest = min(way.seconds for way in fits)
    return next(way for way in fits if way.seconds <= (1 + AS_QUICK) * quickest)


def _reason(best: Way, others: Sequence[Way]) -> str:
    seen = {best.mode: best}
    for way in sorted(others, key=lambda way: (bool(way.why_not), way.seconds)):
        seen.setdefault(way.mode, way)
    del seen[best.mode]
    said = "; ".join(map(str, seen.values()))
    return f"No mode fits: {best}; {said}." if best.why_not else f"{best} a step; {said}."


def _lacking(way: Way) -> float:
    """Returns the largest ratio of needed to free memory among the places where a plan lacks memory."""
    assert way.plan is not None
    return max((needed / max(free, 1) for _, needed, free in way.plan.room.lacks(way.plan.estimate)), default=0.0)


def in_seconds(seconds: float) -> str:
    """Returns a predicted time for people: two digits, and whole seconds from ten on."""
    return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"


def _jobs(job: Workload, cards: Mapping[str, Card]) -> Iterator[tuple[Workload, str]]:
    """Yields the job in each mode, the simplest first, with the reason why the mode is not possible, or ""."""
    asked, count, passes = job.model.placement, len(cards), job.micro_batches
    yield _placed(job, replace(asked, mode=_ONE, devices=max(cards, key=lambda name: cards[name].flops_per_s))), ""
    listed = ",".join(cards)
    for split_at in dict.fromkeys(("auto", *_by_speed(job, cards), *([INTERLEAVED] if passes > 1 else []))):
        yield _placed(job, replace(asked, mode=_BLOCKS, devices=listed, split_at=split_at)), ""
    yield _placed(job, replace(asked, mode=TOKENS, devices=listed)), ""
    copies = _placed(job, replace(asked, mode=PER_GPU, devices=listed))
    if job.longer_share:
        why_not = "needs a LoRA without dropout" if job.lora.draws else ""  # with dropout, experts take turns
        yield _placed(job, replace(asked, mode=EXPERT_PER_GPU, devices=",".join([*cards][:2]))), why_not
    train = replace(job.train, gradient_accumulation_steps=max(passes // count, 1))
    why_not = f"needs a gradient_accumulation_steps that {count} divides" if passes % count else ""
    yield replace(copies, train=train), why_not


def _by_speed(job: Workload, cards: Mapping[str, Card]) -> list[str]:
    """Returns `split_at` with blocks in proportion to speed, in a list; an empty list for equally fast cards."""
    speeds, layers = [card.flops_per_s for card in cards.values()], job.file.variant.shape.num_layers
    if len({*speeds}) == 1:
        return []
    edges = [round(layers * part / sum(speeds)) for part in accumulate(speeds)]
    return [",".join(map(str, edges[:-1]))] if all(b > a for a, b in pairwise((0, *edges))) else []


def _placed(job: Workload, placement: PlacementConfig) -> Workload:
    return replace(job, model=job.model.with_placement(placement))


def _way(job: Workload, why_not: str, cards: Mapping[str, Card], plan_of: PlanOf) -> Way:
    mode = job.model.placement.mode
    if why_not:
        return Way(mode, why_not=why_not)
    tried, slower = job, ""
    if mode == EXPERT_PER_GPU:  # planned as one expert on the slower card, with twice the host memory
        slower = min(job.model.placement.devices.split(","), key=lambda name: cards[name].flops_per_s)
        tried = _placed(job, replace(job.model.placement, mode=_ONE, devices=slower))
    try:
        plan = plan_of(tried)
        if plan is None:
            return Way(mode, why_not="is not planned")
        seconds = _seconds(plan, cards)
    except WanTrainerError as error:  # for example clips with too few tokens to split
        return Way(mode, why_not=f"is refused ({str(error).rstrip('.')})")
    needs = plan.estimate
    if mode == EXPERT_PER_GPU:
        seconds *= job.longer_share
        planned = plan.job.model.placement  # assumed cards have device names of their own
        listed = job.model.placement.devices if planned.devices == slower else planned.devices
        plan = replace(plan, job=_placed(plan.job, replace(planned, mode=mode, devices=listed)))
        needs = replace(needs, host=2 * needs.host)
    if lacks := plan.room.lacks(needs):
        place, needed, free = lacks[0]
        why_not = f"does not fit ({needed / _GIB:.1f} of {free / _GIB:.1f} GiB on {place})"
    return Way(mode, plan, seconds, why_not)


def _seconds(plan: MemoryPlan, cards: Mapping[str, Card]) -> float:
    mode = plan.job.model.placement.mode
    used = [cards[name] for name in (cards if mode == PER_GPU else plan.estimate.devices)]
    if mode in (_BLOCKS, TOKENS):
        return plan.seconds(used)
    seconds = max(plan.seconds([card]) for card in dict.fromkeys(used))
    if mode == PER_GPU:  # gradients are averaged once a step
        seconds += 8 * sum(plan.job.shape().adapter_values.values()) * (len(cards) - 1) / len(cards) / LINK
    return seconds
