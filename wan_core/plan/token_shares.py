"""Token shares for cards of different speed and memory (split tokens)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import permutations

from ..model.heads import shares
from .cards import Card, CardCost
from .planning import MemoryPlan
from .split_time import seconds_together
from .step_time import work_of_passes
from .workload import Workload

_MOST_MOVED = 10
"""largest percentage of the tokens that one move of the search shifts between two cards; one of 12 heads is 8
percent"""
_TRIES = 4
"""number of plans with ever smaller shares for cards that lack memory; each plan takes time"""
_LESS = 0.75
"""largest factor on the share of a card that lacks memory, from one plan to the next"""


def shared_by_speed(
    job: Workload, even: MemoryPlan, cards: Sequence[Card], plan_of: Callable[[Workload], MemoryPlan | None]
) -> MemoryPlan | None:
    """Returns the plan of a job with the fastest token shares on `cards`, smaller for a card that lacks memory.

    None if equal shares are the best, and if nothing is planned. `even`: the plan with equal shares, in the order
    of `cards`. `plan_of`: as for `modes.choose_mode`.
    """
    alone = replace(even.job.shape(), others=())
    forward, backward = work_of_passes(alone, even.job.step, even.estimate)
    parts = shares_by_speed(forward.plus(backward), alone.shape.num_heads, cards)
    found = None if len({*parts}) > 1 else even
    for _ in range(_TRIES):
        if found is not None:
            parts = _within_memory(parts, found)
            if not parts:
                break
        placement = replace(job.model.placement, token_shares=",".join(map(str, parts)))
        found = plan_of(replace(job, model=job.model.with_placement(placement)))
        if found is None:
            break
    return None if found is even else found


def shares_by_speed(work: CardCost, heads: int, cards: Sequence[Card]) -> tuple[int, ...]:
    """Returns the percentages of tokens and heads with which `cards` are fastest; 1 for each of equal cards.

    `work`: the work on one card with all tokens and `heads`.
    """
    if len({*cards}) == 1:
        return (1,) * len(cards)

    def seconds(parts: tuple[int, ...]) -> float:
        works: list[CardCost] = []
        for part, own in zip(parts, shares(heads, parts), strict=True):
            tokens, attention = part / sum(parts), own / heads * work.attention
            flop = tokens * (work.flop - work.attention) + attention
            works.append(CardCost(flop, tokens * work.bytes, work.kernels, tokens * work.moved, attention))
        return seconds_together(works, cards)

    speeds = [round(1e6 / work.seconds(card)) + 1 for card in cards]
    best = tuple(shares(100, speeds, least=1))
    while True:
        moves = (
            tuple(part + count * ((card == to) - (card == source)) for card, part in enumerate(best))
            for source, to in permutations(range(len(cards)), 2)
            for count in range(1, min(best[source], _MOST_MOVED + 1))
        )
        better = min(moves, key=seconds, default=best)
        if seconds(better) >= seconds(best):
            return best
        best = better


def _within_memory(parts: Sequence[int], plan: MemoryPlan) -> tuple[int, ...]:
    """Returns percentages with smaller parts for the cards that lack memory; () if no card or every card does.

    Memory other than weights and adapters is taken as proportional to the part, an upper bound of what it saves.
    """
    lacks = {place: (needed, free) for place, needed, free in plan.room.lacks(plan.estimate)}
    found: list[int] = []
    for part, (name, memory) in zip(parts, plan.estimate.devices.items(), strict=True):
        fixed, (needed, free) = memory.weights + memory.adapters, lacks.get(name, (1, 1))
        spare = min(_LESS, max(0.0, free - fixed) / (needed - fixed)) if name in lacks else 1.0
        found.append(max(1, int(1000 * part * spare)))
    lacking = len(lacks.keys() & plan.estimate.devices.keys())
    return tuple(shares(100, found, least=1)) if 0 < lacking < len(found) else ()
