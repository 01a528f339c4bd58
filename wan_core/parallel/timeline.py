"""The event model of several cards in one process: predicts when each works, from a schedule and the cost of each work.

Host threads issue kernels in the order of the schedule; a card runs its kernels in the order of issue, and its launch
queue blocks the host when it is full. A result is sent to the next card once its work has ended, the link is free, and
the next card has reached the work that needs it. Nothing is measured here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from .schedule import Schedule, Work, in_order, in_turn

_LAUNCH_QUEUE = 1024
"""kernels that a CUDA stream queues before it blocks the host, as reported by others"""
_LAUNCH_S = 6e-6
"""seconds that the host needs for one kernel, with Python and autograd"""
PEER_BYTES_PER_S, STAGED_BYTES_PER_S = 25e9, 10e9
"""bytes/s between two cards with PCIe 4: with peer access, and through host memory without it"""
_LATENCY_S = 50e-6
_PIECE = 64
"""kernels that the event model issues together"""


@dataclass(frozen=True)
class StageCost:
    """The work of one stage for one micro-batch."""

    forward_s: float
    backward_s: float
    """with recompute"""
    forward_kernels: int = 0
    backward_kernels: int = 0
    sent_bytes: int = 0
    """bytes sent to the next stage, and received as gradients"""

    def seconds(self, work: Work) -> float:
        return self.forward_s if work.forward else self.backward_s

    def kernels(self, work: Work) -> int:
        return self.forward_kernels if work.forward else self.backward_kernels


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

    def busy(self, card: int) -> float:
        """Returns the share of time in which a card works."""
        return sum(span.end - span.begin for span in self.cards[card]) / self.seconds

    @property
    def idle(self) -> float:
        """The bubble of the pipeline: the mean share of time in which a card waits."""
        return 1 - sum(map(self.busy, range(len(self.cards)))) / len(self.cards)

    def drawn(self, width: int = 72) -> str:
        """Returns a line of text for each card: the number of the micro-batch, then = for forward, # for backward."""
        scale, lines = width / self.seconds, list[str]()
        for number, line in enumerate(self.cards):
            row = ["."] * width
            for span in line:
                begin, end = round(span.begin * scale), max(round(span.end * scale), round(span.begin * scale) + 1)
                mark, name = "=" if span.work.forward else "#", str(span.work.micro)
                text = (name + mark * (end - begin))[: end - begin]
                row[begin:end] = text
            lines.append(f"card {number} {''.join(row[:width])} {100 * self.busy(number):.0f} %")
        return "\n".join(lines)


@dataclass
class _Card:
    free: float = 0.0
    """end of its last issued kernel"""
    queue: deque[tuple[float, int]] = field(default_factory=deque)
    """end time and number of kernels of each queued piece of work"""
    pending: int = 0
    spans: list[Span] = field(default_factory=list)


def replay(
    schedule: Schedule,
    costs: Sequence[StageCost],
    *,
    homes: Sequence[int] | None = None,
    bytes_per_s: float = PEER_BYTES_PER_S,
    launch_queue: int = _LAUNCH_QUEUE,
    launch_s: float = _LAUNCH_S,
) -> Timeline:
    """Returns the timeline of `schedule`, with one host thread for each of its lines.

    `costs`: of each stage. `homes`: the card of each stage; None: each line is a card. A schedule with a single line
    has one host thread for all cards.
    """
    where = [schedule.card_of[stage] for stage in range(schedule.stages)] if homes is None else homes
    line_of = schedule.card_of
    cards = [_Card() for _ in range(1 + max(where))]
    hosts, links = [0.0] * len(schedule.cards), dict[tuple[int, int], float]()
    issued, ends = dict[Work, float](), dict[Work, float]()
    for work in in_order(schedule):
        cost, card, host = costs[work.stage], cards[where[work.stage]], line_of[work.stage]
        ready, needs = 0.0, work.needs(schedule.stages - 1)
        if needs is not None:
            hosts[host] = max(hosts[host], issued[needs])
            ready = ends[needs]
            way = where[needs.stage], where[work.stage]
            if way[0] != way[1]:
                sent = costs[min(needs.stage, work.stage)].sent_bytes
                begin = max(ready, card.free, links.get(way, 0.0))
                ready = links[way] = begin + sent / bytes_per_s + _LATENCY_S
        hosts[host] = _issue(work, cost, card, hosts[host], ready, (launch_queue, launch_s))
        issued[work], ends[work] = hosts[host], card.free
    return Timeline(tuple(tuple(card.spans) for card in cards))


def _issue(work: Work, cost: StageCost, card: _Card, host: float, ready: float, launches: tuple[int, float]) -> float:
    """Adds one work to a card, which begins at `ready` or later; returns the time when the host has issued it."""
    most, launch_s = launches
    kernels, seconds = cost.kernels(work), cost.seconds(work)
    pieces = max(1, -(-kernels // _PIECE))
    begun: float | None = None
    for number in range(pieces):
        count = kernels * (number + 1) // pieces - kernels * number // pieces
        while card.queue and (card.pending + count > most or card.queue[0][0] <= host):
            end, done = card.queue.popleft()
            card.pending -= done
            host = max(host, end)
        host += count * launch_s
        begin = max(card.free, ready, host)
        begun = begin if begun is None else begun
        card.free = begin + seconds / pieces
        card.queue.append((card.free, count))
        card.pending += count
    card.spans.append(Span(work, card.free if begun is None else begun, card.free))
    return host


def serial_seconds(costs: Sequence[StageCost], micro_batches: int, homes: Sequence[int], bytes_per_s: float) -> float:
    """Returns the seconds of plain accumulation, where one card works at a time."""
    one_line = Schedule((tuple(in_order(in_turn(homes, micro_batches))),))
    return replay(one_line, costs, homes=homes, bytes_per_s=bytes_per_s).seconds
