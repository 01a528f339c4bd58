"""Kinds of GPU: memory, and the three constants that predict the time of a step."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from ..abilities import abilities_of
from ..accelerator import is_gpu
from ..placement.cards import card_limit
from .measured_ratios import SECONDS
from .workload import Workload

_FLOPS_REACHED, _BYTES_REACHED, _KERNEL_S = 0.58, 0.76, 6.4e-6
"""share of peak FLOP/s and of peak memory bandwidth that kernels reach, and seconds that each kernel adds

Fitted by least squares to six steps measured on an H200 (benchmarks/results/gpu_check_H200_2026-11.md: 14B, 12 blocks
of 14B, and 1.3B; bf16 and fp8): 574 TFLOP/s, 3.64 TB/s, 6.4 microseconds, each step within 1.4 %. For every other card
these shares are an assumption.
"""
_HOST_S = 20e-6
"""seconds that the host needs to launch a kernel; where launches take longer than kernels, the card waits

Assumed for every machine without a measurement; the host of one H200 took 87 to 140 microseconds in a 1.3B step.
"""
_STAND_IN = (100e12, 1.0e12)
"""peak FLOP/s and bytes/s of an unknown card"""


@dataclass(frozen=True)
class Card:
    """A kind of GPU."""

    name: str
    gibibytes: int
    bf16: float
    """the maker's peak FLOP/s in bf16 (fp16 on cards without bf16) with float32 accumulation"""
    bandwidth: float
    """the maker's peak bytes/s of device memory"""
    measured: bool = False
    """whether the shares of the peaks were measured on this kind of card"""
    attention: float = 1.0
    """FLOP/s of attention as a share of that of matrix products"""

    @property
    def flops_per_s(self) -> float:
        """FLOP/s in kernels of matrix products and attention."""
        return _FLOPS_REACHED * self.bf16

    @property
    def bytes_per_s(self) -> float:
        """Bytes/s in all other kernels."""
        return _BYTES_REACHED * self.bandwidth

    @property
    def kernel_s(self) -> float:
        """Seconds that each kernel adds: its launch, and the partly idle card at its start and end."""
        return _KERNEL_S


class CardCost(NamedTuple):
    """The work of a card in FLOP, bytes and kernels, for its three constants."""

    flop: float
    """FLOP of matrix products and attention"""
    bytes: float
    """bytes read and written by all other kernels"""
    kernels: float
    """number of kernels"""
    moved: float
    """bytes of all kernels; not used for time"""
    attention: float = 0.0
    """FLOP of attention, a part of `flop`"""

    def seconds(self, card: Card) -> float:
        """Returns the seconds of `card`, or of its host if that is slower."""
        return max(self.seconds_on(card), self.kernels * _HOST_S)

    def seconds_on(self, card: Card) -> float:
        """Returns the seconds of `card` with a host that is fast enough."""
        slower = self.attention * (1 / card.attention - 1)
        return (self.flop + slower) / card.flops_per_s + self.bytes / card.bytes_per_s + self.kernels * card.kernel_s

    def times(self, count: float) -> CardCost:
        return CardCost(*(count * amount for amount in self))

    def of_some(self, share: float) -> CardCost:
        """Returns the work for a share of the tokens."""
        attention = share**2 * self.attention
        flop = share * (self.flop - self.attention) + attention
        return CardCost(flop, share * self.bytes, self.kernels, share * self.moved, attention)

    def plus(self, other: CardCost) -> CardCost:
        return CardCost(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


_EFFICIENT = 0.5
"""`attention` below compute capability 8.0 if torch has the memory-efficient kernel but no FlashAttention; assumed,
because FlashAttention-2 is twice as fast as that kernel on an A100 (its paper)"""

CARDS = (
    Card("RTX 4070", 12, 58.3e12, 0.504e12),
    Card("RTX 4080", 16, 97.5e12, 0.717e12),
    Card("RTX 3090", 24, 71.0e12, 0.936e12),
    Card("RTX 4090", 24, 165.2e12, 1.008e12),
    Card("RTX 5090", 32, 209.5e12, 1.792e12),
    Card("RTX 6000 Ada", 48, 364.2e12, 0.960e12),
    Card("A100", 80, 312.0e12, 2.039e12),
    Card("H100", 80, 989.0e12, 3.350e12),
    Card("H200", 141, 989.0e12, 4.800e12, measured=True),
)


_OTHERS = (
    Card("RTX 3060", 12, 25.5e12, 0.360e12),
    Card("RTX 3080", 10, 59.5e12, 0.760e12),
    Card("RTX 4060 Ti", 16, 44.1e12, 0.288e12),
    Card("RTX 4070 Ti", 12, 80.2e12, 0.504e12),
    Card("RTX 4070 SUPER", 12, 71.0e12, 0.504e12),
    Card("RTX 4070 Ti SUPER", 16, 88.2e12, 0.672e12),
    Card("RTX 4080 SUPER", 16, 104.4e12, 0.736e12),
    Card("RTX 5060 Ti", 16, 47.4e12, 0.448e12),
    Card("RTX 5070", 12, 61.7e12, 0.672e12),
    Card("RTX 5070 Ti", 16, 87.9e12, 0.896e12),
    Card("RTX 5080", 16, 112.6e12, 0.960e12),
    Card("RTX A6000", 48, 154.8e12, 0.768e12),
    Card("L40S", 48, 362.0e12, 0.864e12),
    Card("H100 PCIe", 80, 756.0e12, 2.000e12),
    Card("T4", 16, 65.0e12, 0.320e12, attention=_EFFICIENT),
    Card("V100", 16, 125.0e12, 0.900e12, attention=_EFFICIENT),
    Card("V100 PCIE", 16, 112.0e12, 0.900e12, attention=_EFFICIENT),
    Card("RTX 2060", 6, 25.8e12, 0.336e12, attention=_EFFICIENT),
    Card("RTX 2060 SUPER", 8, 28.7e12, 0.448e12, attention=_EFFICIENT),
    Card("RTX 2070", 8, 29.9e12, 0.448e12, attention=_EFFICIENT),
    Card("RTX 2070 SUPER", 8, 36.3e12, 0.448e12, attention=_EFFICIENT),
    Card("RTX 2080", 8, 40.3e12, 0.448e12, attention=_EFFICIENT),
    Card("RTX 2080 SUPER", 8, 44.6e12, 0.496e12, attention=_EFFICIENT),
    Card("RTX 2080 Ti", 11, 53.8e12, 0.616e12, attention=_EFFICIENT),
    Card("TITAN RTX", 24, 130.5e12, 0.672e12, attention=_EFFICIENT),
    Card("Quadro RTX 6000", 24, 130.5e12, 0.672e12, attention=_EFFICIENT),
    Card("Quadro RTX 8000", 48, 130.5e12, 0.672e12, attention=_EFFICIENT),
)
"""cards recognised by name only; CARDS also stand in for an unknown card of their size"""
_OTHER_CARD = frozenset({"Ti", "SUPER", "Laptop", "D", "Max"})
"""words after a card's number that name another card"""


def card_named(device_name: str) -> Card | None:
    """Returns the card of a driver's name such as "NVIDIA GeForce RTX 4090"; None for an unknown card."""
    words = re.split(r"[\s-]+", device_name)
    known = sorted((*CARDS, *_OTHERS), key=lambda card: -len(card.name.split()))
    return next((card for card in known if _within(card.name.split(), words)), None)


def unknown_card(device_name: str) -> Card:
    """Returns a stand-in for an unknown card; only ratios of measured time to its predicted time mean anything."""
    return Card(device_name, 0, *_STAND_IN)


def card_of_size(gibibytes: float) -> Card:
    """Returns the smallest card with this much memory, the fastest of several; the largest card if none has it."""
    fits = [card for card in CARDS if card.gibibytes >= gibibytes - 0.5] or [CARDS[-1]]
    return max((card for card in fits if card.gibibytes == fits[0].gibibytes), key=lambda card: card.bf16)


def slowest_of(gibibytes: Sequence[float]) -> Card:
    """Returns the slowest of cards with these GiB."""
    return min(map(card_of_size, gibibytes), key=lambda card: card.bf16)


def card_of(device: torch.device, job: Workload | None = None) -> Card | None:
    """Returns the kind of GPU of a device; None if it is unknown.

    A card that is in no table gets a stand-in if it has ratios of runs such as `job`. Where a memory limit simulates a
    card on the CPU, this is a card of that size.
    """
    limit, name = card_limit(), abilities_of(device).name
    if is_gpu(device):
        known = card_named(name)
    elif limit is None:
        return None
    else:
        known = card_of_size(limit)
    return unknown_card(name) if known is None and job is not None and job.ratio(str(device), SECONDS) else known


def _within(name: list[str], words: list[str]) -> bool:
    """Returns whether `words` contain `name`, without a word after it that names another card (Ti, Laptop)."""
    ends = [i + len(name) for i in range(len(words)) if words[i : i + len(name)] == name]
    return any(not _OTHER_CARD & {*words[end:]} for end in ends)
