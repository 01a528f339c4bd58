"""The event model of several cards in one process: predicts when each works, from a schedule and the cost of each work.

A card does its work in the order of the schedule. A result is sent to the next card once its work has ended, the link
is free, and the next card has reached the work that needs it. Nothing is measured here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .schedule import Schedule, Work, in_order

PEER_BYTES_PER_S, STAGED_BYTES_PER_S = 25e9, 10e9
"""bytes/s between two cards with PCIe 4: with peer access, and through host memory without it"""
_LATENCY_S = 50e-6


@dataclass(frozen=True)
class StageCost:
    """The work of one stage for one micro-batch."""

    forward_s: float
    backward_s: float
    """with recompute"""
    sent_bytes: int = 0
    """bytes sent to the next stage, and received as gradients"""

    def seconds(self, work: Work) -> float:
        return self.forward_s if work.forward else self.backward_s


@dataclass(frozen=True)
class Span:
    """Begin and end of one work on a card, in seconds."""

    work: Work
    begin: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """The spans of each card."""

    cards: tuple[tuple[Span, ...], ...]

    @property
    def seconds(self) -> float:
        return max(span.end for line in self.cards for span in line)

    @property
    def idle(self) -> float:
        """The bubble of the pipeline: the mean share of time in which a card waits."""
        return 1 - sum(span.end - span.begin for line in self.cards for span in line) / self.seconds / len(self.cards)


def replay(schedule: Schedule, costs: Sequence[StageCost], *, bytes_per_s: float = PEER_BYTES_PER_S) -> Timeline:
    """Returns the timeline of `schedule`, a line for each card. `costs`: of each stage."""
    home, lines = schedule.card_of, [list[Span]() for _ in schedule.cards]
    free, links, ends = [0.0] * len(lines), dict[tuple[int, int], float](), dict[Work, float]()
    for work in in_order(schedule):
        card, begin, needs = home[work.stage], free[home[work.stage]], work.needs(schedule.stages - 1)
        if needs is not None:
            begin, way = max(begin, ends[needs]), (home[needs.stage], card)
            if way[0] != card:
                sent = costs[min(needs.stage, work.stage)].sent_bytes / bytes_per_s + _LATENCY_S
                begin = links[way] = max(begin, links.get(way, 0.0)) + sent
        ends[work] = free[card] = begin + costs[work.stage].seconds(work)
        lines[card].append(Span(work, begin, free[card]))
    return Timeline(tuple(map(tuple, lines)))
