"""An event model of split tokens: host threads, launch queues, computing and copies of each card, for one step.

    .venv/bin/python benchmarks/split_tokens.py     # writes results/split_tokens_<yyyy-mm>.md

14B at 832x480x49, batch 1, on cards of one kind (RTX 5090 by default; --gib chooses the kind by its memory). A model,
no measurement: seconds of a pass are those that a plan predicts for one card's part of the tokens
(wan_core/plan/step_time.py), divided over a layer by FLOP. The copies of a card share its link, both directions at
once. `beside` is the order of the code, `behind` one in which nothing is computed while something is on its way, and
`one thread` issues the kernels of all cards.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from wan_core.lora import LoraConfig, count_values, inject_lora
from wan_core.model import WanShape, model_without_values
from wan_core.placement import JobShape, MemoryEstimate, MemoryMeasures, Placement, StepShape
from wan_core.plan.cards import Card, card_of_size
from wan_core.plan.step_time import work_of_passes
from wan_core.precision import PrecisionPolicy

RESULTS = ROOT / "benchmarks" / "results"
OF_14B = WanShape(dim=5120, ffn_dim=13824, num_heads=40, num_layers=40)
CLIP = StepShape(batch_size=1, latent_frames=13, latent_height=60, latent_width=104)
LORA = LoraConfig(rank=32)
_QUEUE, _LAUNCH_S, _MEETING_S = 1024, 8e-6, 60e-6
"""kernels that a card takes ahead of time; seconds of the host for one, and for one meeting of threads"""
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
    """Several cards of one kind, all of which do the same."""

    count: int
    rate: float
    """bytes/s of a link, each way"""
    tensor: float
    """bytes of one tensor that a card sends"""
    threads: bool = True
    cards: list[_Card] = field(default_factory=list)
    hosts: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.cards = [_Card() for _ in range(self.count)]
        self.hosts = [0.0] * (self.count if self.threads else 1)

    def compute(self, seconds: float, arrived: float = 0.0, kernels: int = _KERNELS) -> None:
        """Launches the kernels of one part on every card; they wait for what arrives."""
        for number, card in enumerate(self.cards):
            host = number if self.threads else 0
            self.hosts[host] += kernels * _LAUNCH_S
            while sum(many for _, many in card.queue) + kernels > _QUEUE:
                self.hosts[host] = max(self.hosts[host], card.queue.popleft()[0])
            card.computes = max(card.computes, self.hosts[host], arrived) + seconds
            card.queue.append((card.computes, kernels))

    def send(self) -> float:
        """Begins one exchange on every card; returns when all of it has arrived."""
        if self.count == 1:
            return 0.0
        self.hosts = [max(self.hosts) + _MEETING_S] * len(self.hosts)
        ready = max(*(card.computes for card in self.cards), *self.hosts)
        for card in self.cards:
            card.sends = max(card.sends, ready) + self.tensor / self.rate
        return max(card.sends for card in self.cards)

    @property
    def ends(self) -> float:
        return max(card.computes for card in self.cards)


@dataclass(frozen=True)
class Layer:
    """Seconds of the parts of a layer in one direction."""

    linear: float
    """one of queries, keys and values"""
    attention: float
    others: float

    @classmethod
    def of(cls, seconds: float, tokens: int, cards: int, *, back: bool) -> Layer:
        """Divides the seconds of a layer by FLOP."""
        dim, own = OF_14B.dim, tokens / cards
        linear, attention = 2 * own * dim**2, (2.5 if back else 1) * 4 * own * tokens * dim
        others = 2 * own * (3 * dim**2 + 2 * dim * OF_14B.ffn_dim)
        of_one = seconds / (3 * linear + attention + others)
        return cls(linear * of_one, attention * of_one, others * of_one)


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


def step_seconds(count: int, rate: float, card: Card, *, beside: bool = True, threads: bool = True) -> float:
    """Returns the seconds of a step on so many cards, with the values of adapters and their gradients sent."""
    devices = [torch.device("cuda", number) for number in range(count)]
    job = JobShape(
        shape=OF_14B,
        numerics=PrecisionPolicy().numerics(torch.bfloat16),
        placement=Placement((devices[0],) * OF_14B.num_layers),
        storage_bytes=lambda _name, parameter: 2 * parameter.numel(),
        adapt=_adapt,
        adapter_values=count_values(model_without_values(OF_14B), LORA),
        others=tuple(devices[1:]),
    )
    estimate = MemoryEstimate(measures=MemoryMeasures(), devices={})
    works = work_of_passes(job, CLIP, estimate)
    forward, backward = (work.seconds(card) / OF_14B.num_layers for work in works)
    there = Layer.of(forward, CLIP.tokens, count, back=False)
    back = Layer.of(backward - forward, CLIP.tokens, count, back=True)
    own = CLIP.tokens / count * OF_14B.dim * 2
    cards = Cards(count, rate, own * (count - 1) / count, threads)
    adapters = 4 * sum(job.adapter_values.values()) * (count - 1) / rate
    for _ in range(OF_14B.num_layers):
        _forward(cards, there, beside=beside)
    for _ in range(OF_14B.num_layers):
        _forward(cards, there, beside=beside)
        _backward(cards, back, beside=beside)
    return cards.ends + 2 * adapters


def page(card: Card) -> str:
    alone = step_seconds(1, 1.0, card)
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
            times = [step_seconds(count, rate, card, **way) for way in ways]
            cells = [f"{one:.1f} s, {alone / one:.2f}x" for one in times]
            lines.append(f"| {count} | {rate / 1e9:.0f} GB/s | {' | '.join(cells)} |")
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
