"""Schedules: the order in which the cards of a split model work.

A stage is a run of consecutive blocks on one card; a card has several stages if blocks are interleaved. `F1.0` is
the forward pass of stage 1 for micro-batch 0, `B1.0` its backward pass.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

_FORWARD, _BACKWARD = 1, 3
"""units of time; a backward pass with recompute takes three times as long as a forward pass"""


class Work(NamedTuple):
    """One pass of one micro-batch through one stage."""

    forward: bool
    stage: int
    micro: int

    def __str__(self) -> str:
        return f"{'F' if self.forward else 'B'}{self.stage}.{self.micro}"

    def needs(self, last: int) -> Work | None:
        """Returns the work whose result this one needs; None for a forward pass of the first stage."""
        if self.forward:
            return Work(True, self.stage - 1, self.micro) if self.stage else None
        return Work(False, self.stage + 1, self.micro) if self.stage < last else Work(True, last, self.micro)


@dataclass(frozen=True)
class Schedule:
    """The work of each card, in order; one host thread issues the work of one card."""

    cards: tuple[tuple[Work, ...], ...]

    def __str__(self) -> str:
        return "\n".join(f"card {number}: {' '.join(map(str, line))}" for number, line in enumerate(self.cards))

    @property
    def stages(self) -> int:
        return 1 + max(work.stage for line in self.cards for work in line)

    @property
    def micro_batches(self) -> int:
        return 1 + max(work.micro for line in self.cards for work in line)

    @property
    def card_of(self) -> dict[int, int]:
        """The card of every stage."""
        return {work.stage: card for card, line in enumerate(self.cards) for work in line}

    def kept(self, card: int, weights: Mapping[int, float] | None = None) -> float:
        """Returns the most micro-batches that a card keeps for backward passes at once, weighted by `weights[stage]`;
        None: each counts 1."""
        most, now = 0.0, 0.0
        for work in self.cards[card]:
            weight = 1.0 if weights is None else weights[work.stage]
            now += weight if work.forward else -weight
            most = max(most, now)
        return most


def in_order(schedule: Schedule) -> list[Work]:
    """Returns all work in topological order; a part of it if the schedule deadlocks."""
    last, places, done = schedule.stages - 1, [0] * len(schedule.cards), dict[Work, None]()
    moved = True
    while moved:
        moved = False
        for card, line in enumerate(schedule.cards):
            while places[card] < len(line):
                needs = line[places[card]].needs(last)
                if needs is not None and needs not in done:
                    break
                done[line[places[card]]] = None
                places[card], moved = places[card] + 1, True
    return list(done)


def in_turn(homes: Sequence[int], micro_batches: int) -> Schedule:
    """Returns the schedule of plain accumulation: one micro-batch after the other, forward and backward.

    `homes`: the card of every stage.
    """
    stages = range(len(homes))
    cards: list[list[Work]] = [[] for _ in range(1 + max(homes))]
    for micro in range(micro_batches):
        for work in [*(Work(True, s, micro) for s in stages), *(Work(False, s, micro) for s in reversed(stages))]:
            cards[homes[work.stage]].append(work)
    return Schedule(tuple(map(tuple, cards)))


def forward_first(homes: Sequence[int], micro_batches: int) -> Schedule:
    """Returns the schedule with all forward passes before the first backward pass."""
    return _alternating(homes, micro_batches, [len(homes) * micro_batches] * (1 + max(homes)))


@lru_cache(maxsize=64)  # cached, because 64 micro-batches take up to a second
def pipelined(homes: tuple[int, ...], micro_batches: int) -> Schedule:
    """Returns the schedule of the shortest step, and of these the one that keeps the fewest micro-batches: 1F1B.

    Micro-batches go through every stage in their order, forward and backward, so gradients add up as in plain
    accumulation.
    """
    best = in_turn(homes, micro_batches)
    taken = _units(best), _kept(best)
    runs = -(-len(homes) // (1 + max(homes)))
    for more in range(runs * micro_batches):
        # Before its first backward pass, a card runs as many forward passes as the cards after it have in flight.
        found = _alternating(homes, micro_batches, [runs * card + more for card in range(max(homes), -1, -1)])
        takes = _units(found), _kept(found)
        if takes < taken:
            best, taken = found, takes
    return best


def _alternating(homes: Sequence[int], micro_batches: int, ahead: Sequence[int]) -> Schedule:
    """Returns the schedule in which each card first runs `ahead` forward passes, then alternates.

    Groups of as many micro-batches as cards go through the stages of a card together, as in Megatron-LM's interleaved
    schedule.
    """
    cards, lines = len(ahead), list[tuple[Work, ...]]()
    groups = [range(first, min(first + cards, micro_batches)) for first in range(0, micro_batches, cards)]
    for card, before in enumerate(ahead):
        mine = [stage for stage, home in enumerate(homes) if home == card]
        forward = [Work(True, stage, micro) for group in groups for stage in mine for micro in group]
        backward = [Work(False, stage, micro) for group in groups for stage in reversed(mine) for micro in group]
        line, rest = forward[:before], forward[before:]
        for number, work in enumerate(backward):
            line += [*rest[number : number + 1], work]
        lines.append(tuple(line))
    return Schedule(tuple(lines))


def _units(schedule: Schedule) -> float:
    """Returns the units of time of a step on equal cards with equal stages; infinite if it deadlocks."""
    last, free, ends = schedule.stages - 1, [0] * len(schedule.cards), dict[Work, int]()
    homes = schedule.card_of
    for work in in_order(schedule):
        needs, card = work.needs(last), homes[work.stage]
        begin = max(free[card], 0 if needs is None else ends[needs])
        ends[work] = free[card] = begin + (_FORWARD if work.forward else _BACKWARD)
    return max(free) if len(ends) == sum(map(len, schedule.cards)) else math.inf


def _kept(schedule: Schedule) -> float:
    return sum(schedule.kept(card) for card in range(len(schedule.cards)))
