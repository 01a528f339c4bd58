"""An event model of split tokens: host threads, launch queues, computing and copies of each card, for one step.

    .venv/bin/python benchmarks/split_tokens.py     # writes results/split_tokens_<yyyy-mm>.md

14B at 832x480x49, batch 1, on cards of one kind (RTX 5090 by default; --gib chooses the kind by its memory), and on
cards of different kinds with equal shares and with those that a plan chooses. A model, no measurement: seconds of a
pass are those that a plan predicts for each card's part of the tokens
(wan_core/plan/step_time.py), divided over a layer by FLOP. The copies of a card share its link, both directions at
once. `beside` is the order of the code, `behind` one in which nothing is computed while something is on its way, and
`one thread` issues the kernels of all cards.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from wan_core.lora import LoraConfig, count_values, inject_lora
from wan_core.model import WanShape, model_without_values
from wan_core.model.heads import shares as sizes_in
from wan_core.placement import JobShape, MemoryEstimate, MemoryMeasures, Placement, StepShape
from wan_core.plan.cards import Card, card_of_size
from wan_core.plan.step_time import work_of_passes
from wan_core.plan.token_shares import shares_by_speed
from wan_core.precision import PrecisionPolicy

RESULTS = ROOT / "benchmarks" / "results"
OF_14B = WanShape(dim=5120, ffn_dim=13824, num_heads=40, num_layers=40)
CLIP = StepShape(batch_size=1, latent_frames=13, latent_height=60, latent_width=104)
LORA = LoraConfig(rank=32)
_QUEUE, _LAUNCH_S, _MEETING_S = 1024, 8e-6, 60e-6
"""kernels that a card takes ahead of time; seconds of the host for one, and for one meeting of threads"""
_ESTIMATE = MemoryEstimate(measures=MemoryMeasures(), devices={})
_DIFFERENT = ((24, 12), (24, 16), (32, 24), (24, 16, 12))
"""GiB of cards, which say their kinds"""
_KERNELS = 20
"""of a fifth of a layer, in one direction"""


def _adapt(model: torch.nn.Module) -> None:
    inject_lora(model, LORA, seed=0)


@dataclass
class _Card:
    computes: float = 0.0
    """until when its computing stream is busy, in seconds"""
    sends: float = 0.0
    queue: deque[tuple[float, int]] = field(default_factory=deque)
    """when what was launched ends, and its kernels"""


@dataclass
class Cards:
    """Several cards that do the same, each for its part of the tokens."""

    rate: float
    """bytes/s of a link, each way"""
    tensors: Sequence[float]
    """bytes of one tensor that each card sends, or receives where that is more"""
    threads: bool = True
    cards: list[_Card] = field(default_factory=list)
    hosts: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.cards = [_Card() for _ in self.tensors]
        self.hosts = [0.0] * (len(self.cards) if self.threads else 1)

    def compute(self, of_each: Sequence[float], arrived: float = 0.0, kernels: int = _KERNELS) -> None:
        """Launches the kernels of one part, of so many seconds on each card; they wait for what arrives."""
        for number, (card, seconds) in enumerate(zip(self.cards, of_each, strict=True)):
            host = number if self.threads else 0
            self.hosts[host] += kernels * _LAUNCH_S
            while sum(many for _, many in card.queue) + kernels > _QUEUE:
                self.hosts[host] = max(self.hosts[host], card.queue.popleft()[0])
            card.computes = max(card.computes, self.hosts[host], arrived) + seconds
            card.queue.append((card.computes, kernels))

    def send(self) -> float:
        """Begins one exchange on every card; returns when all of it has arrived."""
        if len(self.cards) == 1:
            return 0.0
        self.hosts = [max(self.hosts) + _MEETING_S] * len(self.hosts)
        ready = max(*(card.computes for card in self.cards), *self.hosts)
        for card, tensor in zip(self.cards, self.tensors, strict=True):
            card.sends = max(card.sends, ready) + tensor / self.rate
        return max(card.sends for card in self.cards)

    @property
    def ends(self) -> float:
        return max(card.computes for card in self.cards)


class Part(NamedTuple):
    """What a card has of all tokens, and of all heads."""

    tokens: float
    heads: float

    @property
    def sent(self) -> float:
        """What it sends or receives of a tensor, whichever is more."""
        return max(self.tokens * (1 - self.heads), self.heads * (1 - self.tokens))


@dataclass(frozen=True)
class Layer:
    """Seconds of the parts of a layer in one direction, of each card."""

    linear: Sequence[float]
    """one of queries, keys and values"""
    attention: Sequence[float]
    others: Sequence[float]

    @classmethod
    def of(cls, seconds: Sequence[float], parts: Sequence[Part], *, back: bool) -> Layer:
        """Divides the seconds of a layer by FLOP."""
        dim, tokens = OF_14B.dim, CLIP.tokens
        attention = (2.5 if back else 1) * 4 * tokens**2 * dim
        flop = (2 * tokens * dim**2, attention, 2 * tokens * (3 * dim**2 + 2 * dim * OF_14B.ffn_dim))
        found: list[tuple[float, ...]] = []
        for one, part in zip(seconds, parts, strict=True):
            linear, attended, others = flop[0] * part.tokens, flop[1] * part.heads, flop[2] * part.tokens
            of_one = one / (3 * linear + attended + others)
            found.append((linear * of_one, attended * of_one, others * of_one))
        return cls(*zip(*found, strict=True))


def _forward(cards: Cards, layer: Layer, *, beside: bool) -> None:
    arrivals = 0.0
    for _ in range(3):
        cards.compute(layer.linear, 0.0 if beside else arrivals)
        arrivals = cards.send()
    cards.compute(layer.attention, arrivals)
    cards.compute(layer.others, cards.send())


def _backward(cards: Cards, layer: Layer, *, beside: bool) -> None:
    cards.compute(layer.others)
    cards.compute(layer.attention, cards.send())
    arrivals = [cards.send() for _ in range(3)]
    for arrived in arrivals:
        cards.compute(layer.linear, arrived if beside else arrivals[-1])


def _job(devices: Sequence[torch.device], shares: tuple[int, ...]) -> JobShape:
    return JobShape(
        shape=OF_14B,
        numerics=PrecisionPolicy().numerics(torch.bfloat16),
        placement=Placement((devices[0],) * OF_14B.num_layers),
        storage_bytes=lambda _name, parameter: 2 * parameter.numel(),
        adapt=_adapt,
        adapter_values=count_values(model_without_values(OF_14B), LORA),
        others=tuple(devices[1:]),
        shares=shares,
    )


def chosen_shares(kinds: Sequence[Card]) -> tuple[int, ...]:
    """Returns the percentages that a plan gives the cards."""
    forward, backward = work_of_passes(_job([torch.device("cuda", 0)], ()), CLIP, _ESTIMATE)
    return shares_by_speed(forward.plus(backward), OF_14B.num_heads, kinds)


def step_seconds(
    kinds: Sequence[Card], rate: float, shares: tuple[int, ...] = (), *, beside: bool = True, threads: bool = True
) -> float:
    """Returns the seconds of a step on such cards, with the values of adapters and their gradients sent; `shares`: of
    the tokens, () for equal ones."""
    count, relative = len(kinds), shares or (1,) * len(kinds)
    job = _job([torch.device("cuda", number) for number in range(count)], relative)
    heads = sizes_in(OF_14B.num_heads, relative)
    parts = [Part(one / sum(relative), own / OF_14B.num_heads) for one, own in zip(relative, heads, strict=True)]
    works = [work_of_passes(job, CLIP, _ESTIMATE, number) for number in range(count)]
    of_each = [[way.seconds(card) / OF_14B.num_layers for way in work] for work, card in zip(works, kinds, strict=True)]
    there = Layer.of([forward for forward, _ in of_each], parts, back=False)
    back = Layer.of([backward - forward for forward, backward in of_each], parts, back=True)
    cards = Cards(rate, [CLIP.tokens * OF_14B.dim * 2 * part.sent for part in parts], threads)
    adapters = 4 * sum(job.adapter_values.values()) * (count - 1) / rate
    for _ in range(OF_14B.num_layers):
        _forward(cards, there, beside=beside)
    for _ in range(OF_14B.num_layers):
        _forward(cards, there, beside=beside)
        _backward(cards, back, beside=beside)
    return cards.ends + 2 * adapters


def _of_several_kinds() -> list[str]:
    """Returns the lines on cards of different speed."""
    lines = [
        "",
        "Cards of different speed, in the order of the code. Ideal: the sum of their speeds, nothing sent. Shares are",
        "percent of the tokens, as a plan chooses them.",
        "",
        "| cards | one alone | link | ideal | equal shares | shares by speed | of the ideal |",
        f"|{' --- |' * 7}",
    ]
    for sizes in _DIFFERENT:
        kinds = [card_of_size(gib) for gib in sizes]
        alone = [step_seconds([kind], 1.0) for kind in kinds]
        ideal, shares = 1 / sum(1 / one for one in alone), chosen_shares(kinds)
        for rate in (25e9, 10e9):
            equal, by_speed = (step_seconds(kinds, rate, way) for way in ((), shares))
            lines.append(
                f"| {' + '.join(kind.name for kind in kinds)} | {min(alone):.1f} s | {rate / 1e9:.0f} GB/s | "
                f"{ideal:.1f} s | {equal:.1f} s | {', '.join(map(str, shares))}: {by_speed:.1f} s | "
                f"{ideal / by_speed:.2f} |"
            )
    return lines


def page(card: Card) -> str:
    alone = step_seconds([card], 1.0)
    lines = [
        "# Split tokens",
        "",
        "Written by `python benchmarks/split_tokens.py`: an event model, nothing here was measured on a GPU. A step of",
        "Wan 2.1 14B in bf16, 832x480x49, rank 32, batch 1, every block checkpointed.",
        f"One {card.name} takes {alone:.1f} s.",
        "",
        "| cards | link | in the order of the code | nothing computed during a copy | one host thread |",
        f"|{' --- |' * 5}",
    ]
    for count in (2, 3, 4):
        for rate in (25e9, 10e9):
            ways = ({}, {"beside": False}, {"threads": False})
            times = [step_seconds([card] * count, rate, **way) for way in ways]
            cells = [f"{one:.1f} s, {alone / one:.2f}x" for one in times]
            lines.append(f"| {count} | {rate / 1e9:.0f} GB/s | {' | '.join(cells)} |")
    lines += _of_several_kinds()
    lines += ["", "Links: of 25 GB/s each way with peer access, of 10 GB/s staged through host memory.", ""]
    return "\n".join(lines)


def main() -> None:
    """Writes the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--gib", type=float, default=32, help="memory of the kind of card")
    text = page(card_of_size(parser.parse_args().gib))
    (RESULTS / f"split_tokens_{time.strftime('%Y-%m')}.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
