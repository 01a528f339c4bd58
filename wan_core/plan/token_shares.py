"""The shares of the tokens that cards of different speed and memory take (split tokens)."""

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
"""percent of the tokens that change cards in a step of the search: a head of 12 is 8"""
_TRIES = 4
"""plans with smaller shares for cards that lack memory; each takes as long as any other plan"""
_LESS = 0.75
"""of its share that such a card takes in the next of these, at most"""


def shared_by_speed(
    job: Workload, even: MemoryPlan, cards: Sequence[Card], plan_of: Callable[[Workload], MemoryPlan | None]
) -> MemoryPlan | None:
    """Returns the plan of a job with the shares that are quickest on `cards`; where one of these lacks memory, with
    smaller ones for it. None where equal shares are that, or nothing is planned.

    `even`: its plan with equal shares, in the order of `cards`. `plan_of`: as for `modes.choose_mode`.
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
    """Returns the percentages of the tokens and heads with which `cards` are quickest; 1 each for cards of one kind.

    `work`: of all tokens and `heads` on one card.
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
    """Returns, in percent, smaller parts for cards that lack memory; () where none lacks any, or all do.

    What a card holds besides weights and adapters grows with its part, though not all of it.
    """
    lacks = {place: (needed, free) for place, needed, free in plan.room.lacks(plan.estimate)}
    found: list[int] = []
    for part, (name, memory) in zip(parts, plan.estimate.devices.items(), strict=True):
        fixed, (needed, free) = memory.weights + memory.adapters, lacks.get(name, (1, 1))
        spare = min(_LESS, max(0.0, free - fixed) / (needed - fixed)) if name in lacks else 1.0
        found.append(max(1, int(1000 * part * spare)))
    lacking = len(lacks.keys() & plan.estimate.devices.keys())
    return tuple(shares(100, found, least=1)) if 0 < lacking < len(found) else ()
