"""The exchange around self-attention: own tokens with all heads become all tokens with own heads, and back (Ulysses).

What a copy sends is on its way while it computes on: it leaves in one node of the graph and arrives in a later one, and
its gradient leaves in the later node and arrives in the earlier one.
Shapes: B batch, n own tokens of N, H heads, h own heads, d head_dim. Heads that do not divide are shared out unevenly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .scopes import scope


class Arriving(NamedTuple):
    """The parcels that every copy has for this one, in order, on its device."""

    parcels: Sequence[Tensor]
    wait: Callable[[], None]
    """lets the device wait for them: nobody may read them before"""


class Swaps(Protocol):
    """The all-to-all between the copies, such as `parallel.Exchange`."""

    def swap(self, me: int, what: str, parcels: Sequence[Tensor]) -> Arriving:
        """Posts the parcel for every copy; waits for the posts of all, not for what they hold.

        `what`: TO_HEADS, TO_TOKENS or TO_ALL, the same in all copies.
        """
        ...


TO_HEADS, TO_TOKENS, TO_ALL = "to heads", "to tokens", "to all"


def shares(total: int, parts: int | Sequence[int], least: int = 0) -> list[int]:
    """Returns the sizes of the parts of `total`: equal ones, the last one larger, or in the proportions `parts`.

    Each is `least` or more, unless `total` is too small for that.
    """
    weights = (1,) * parts if isinstance(parts, int) else parts
    least = least if total >= least * len(weights) else 0
    edges = [total * weight // sum(weights) for weight in accumulate(weights, initial=0)]
    for later in range(1, len(weights)):
        edges[later] = max(edges[later], edges[later - 1] + least)
    for earlier in range(len(weights) - 1, 0, -1):
        edges[earlier] = min(edges[earlier], edges[earlier + 1] - least)
    return [end - begin for begin, end in pairwise(edges)]


@dataclass(eq=False)
class _Journey:
    """One tensor that is exchanged, and its gradient."""

    way: str
    tokens: list[int]
    """of each copy; known behind TO_HEADS"""
    there: Arriving | None = None
    back: Arriving | None = None


class Sent(NamedTuple):
    """A tensor on its way."""

    empty: Tensor
    """(B, N, h, d) or (B, n, H, d), without memory: it stands in the graph for what will arrive"""
    journey: _Journey


class TokenSeat:
    """Exchanges tokens for heads, for copy number `me` of the copies that run a part of the tokens each.

    Every copy calls the same methods in the same order.
    """

    def __init__(self, exchange: Swaps, me: int, copies: int | Sequence[int], num_heads: int) -> None:
        """`copies`: how many, or the proportions in which they share out heads."""
        self.joined = False
        """whether the copies run together now; otherwise this one has all tokens and exchanges nothing"""
        self._exchange, self._me = exchange, me
        self._heads = shares(num_heads, copies)
        self._copies = len(self._heads)

    def send(self, part: Tensor) -> Sent:
        """Sends own tokens of all heads, (B, n, H, d)."""
        journey = _Journey(TO_HEADS, [])
        return Sent(cast(Tensor, _Leave.apply(self, journey, part)), journey)

    def receive(self, sent: Sent) -> Tensor:
        """Returns all tokens of own heads, (B, N, h, d)."""
        return cast(Tensor, _Arrive.apply(self, sent.journey, sent.empty))

    def to_tokens(self, attended: Tensor, sent: Sent) -> Tensor:
        """All tokens of own heads (B, N, h, d) -> own tokens of all heads (B, n, H, d).

        `sent`: of the same layer.
        """
        journey = _Journey(TO_TOKENS, sent.journey.tokens)
        return cast(Tensor, _Arrive.apply(self, journey, _Leave.apply(self, journey, attended)))

    def gather(self, own: Tensor) -> Tensor:
        """Returns the tokens of all copies, (B, N, D), from those of this one, (B, n, D). Without a graph."""
        with scope("exchange"):
            found = self._exchange.swap(self._me, TO_ALL, [own.contiguous()] * self._copies)
        found.wait()
        return torch.cat(list(found.parcels), dim=1)

    def start(self, way: str, journey: _Journey, part: Tensor) -> Arriving:
        """Sends `part` that way."""
        split = part.split(self._heads, dim=2) if way == TO_HEADS else part.split(journey.tokens, dim=1)
        # Its own stays a view; the others are copied as one piece, by the engine that copies.
        with scope("exchange"):
            parcels = [one if other == self._me else one.contiguous() for other, one in enumerate(split)]
            found = self._exchange.swap(self._me, way, parcels)
        if way == TO_HEADS:
            journey.tokens = [parcel.shape[1] for parcel in found.parcels]
        return found

    def finish(self, way: str, arriving: Arriving) -> Tensor:
        """Returns what arrives that way."""
        arriving.wait()
        return torch.cat(list(arriving.parcels), dim=1 if way == TO_HEADS else 2)


def _empty(like: Tensor, way: str, arriving: Arriving) -> Tensor:
    """Returns a tensor of the shape of what arrives, without its memory."""
    axis = 1 if way == TO_HEADS else 2
    sizes = list(arriving.parcels[0].shape)
    sizes[axis] = sum(parcel.shape[axis] for parcel in arriving.parcels)
    return like.new_empty(()).expand(sizes)


class _Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, seat: TokenSeat, journey: _Journey, part: Tensor) -> Tensor:
        ctx.seat, ctx.journey = seat, journey
        journey.there = seat.start(journey.way, journey, part)
        return _empty(part, journey.way, journey.there)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *_empty: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        journey: _Journey = ctx.journey
        arriving, journey.back = journey.back, None
        assert arriving is not None
        return None, None, ctx.seat.finish(_back(journey.way), arriving)


class _Arrive(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, seat: TokenSeat, journey: _Journey, empty: Tensor) -> Tensor:
        ctx.seat, ctx.journey, ctx.sizes = seat, journey, empty.shape
        arriving, journey.there = journey.there, None
        assert arriving is not None
        return seat.finish(journey.way, arriving)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        journey: _Journey = ctx.journey
        journey.back = ctx.seat.start(_back(journey.way), journey, gradients[0])
        return None, None, gradients[0].new_empty(()).expand(ctx.sizes)


def _back(way: str) -> str:
    return TO_TOKENS if way == TO_HEADS else TO_HEADS
