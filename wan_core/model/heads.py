"""The all-to-all around self-attention (DeepSpeed-Ulysses): own tokens, all heads -> all tokens, own heads, and back.

Sending and receiving are two autograd nodes, so the copy computes while the tensor is copied. In the backward pass the
later node sends the gradient and the earlier one receives it.
Shapes: B batch, n own tokens of N, H heads, h own heads, d head_dim. Copies may have different numbers of heads.
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
    """The tensors that all copies send to this one."""

    parcels: Sequence[Tensor]
    """one per copy, in order, on this copy's device"""
    wait: Callable[[], None]
    """makes the device wait for the parcels; call it before reading them"""


class Swaps(Protocol):
    """Runs the all-to-all between the copies, for example `parallel.Exchange`."""

    def swap(self, me: int, what: str, parcels: Sequence[Tensor]) -> Arriving:
        """Sends parcel i to copy i; waits until every copy has called it, but not until the values have arrived.

        `what`: TO_HEADS, TO_TOKENS or TO_ALL, the same in all copies.
        """
        ...


TO_HEADS, TO_TOKENS, TO_ALL = "to heads", "to tokens", "to all"


def shares(total: int, parts: int | Sequence[int], least: int = 0) -> list[int]:
    """Splits `total` into `parts` nearly equal sizes, or into sizes in the proportions `parts`.

    Each size is at least `least`, unless `total` is too small.
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
class _Transfer:
    """One exchange of a tensor, and of its gradient in the backward pass."""

    way: str
    """TO_HEADS or TO_TOKENS"""
    tokens: list[int]
    """number of tokens of each copy; filled by the exchange TO_HEADS"""
    arriving: Arriving | None = None
    """the tensor, between its two nodes"""
    gradient: Arriving | None = None
    """the gradient, between its two nodes"""


class Sent(NamedTuple):
    """A tensor that is being exchanged."""

    empty: Tensor
    """(B, N, h, d) or (B, n, H, d), without memory; it links the two nodes in autograd's graph"""
    transfer: _Transfer


class TokenSeat:
    """Exchanges tokens for heads, for copy number `me`; each copy runs a part of the tokens.

    Every copy calls the same methods in the same order.
    """

    def __init__(self, exchange: Swaps, me: int, copies: int | Sequence[int], num_heads: int) -> None:
        """`copies`: their number, or the proportions of their heads."""
        self.joined = False
        """whether the copies run together now; if False, this copy has all tokens and exchanges nothing"""
        self._exchange, self._me = exchange, me
        self._heads = shares(num_heads, copies)
        self._copies = len(self._heads)

    def send(self, part: Tensor) -> Sent:
        """Starts sending own tokens of all heads (B, n, H, d)."""
        transfer = _Transfer(TO_HEADS, [])
        return Sent(cast(Tensor, _Leave.apply(self, transfer, part)), transfer)

    def receive(self, sent: Sent) -> Tensor:
        """Returns all tokens of own heads (B, N, h, d)."""
        return cast(Tensor, _Arrive.apply(self, sent.transfer, sent.empty))

    def to_tokens(self, attended: Tensor, sent: Sent) -> Tensor:
        """All tokens of own heads (B, N, h, d) -> own tokens of all heads (B, n, H, d).

        `sent`: any result of `send` in the same layer, which holds the token counts.
        """
        transfer = _Transfer(TO_TOKENS, sent.transfer.tokens)
        return cast(Tensor, _Arrive.apply(self, transfer, _Leave.apply(self, transfer, attended)))

    def gather(self, own: Tensor) -> Tensor:
        """Own tokens (B, n, D) -> tokens of all copies (B, N, D), without gradients."""
        with scope("exchange"):
            found = self._exchange.swap(self._me, TO_ALL, [own.contiguous()] * self._copies)
        found.wait()
        return torch.cat(list(found.parcels), dim=1)

    def start(self, way: str, transfer: _Transfer, part: Tensor) -> Arriving:
        """Starts to send `part`; `way`: TO_HEADS or TO_TOKENS."""
        split = part.split(self._heads, dim=2) if way == TO_HEADS else part.split(transfer.tokens, dim=1)
        # The own parcel stays a view. The others are contiguous, so that the GPU's copy engine can copy them.
        with scope("exchange"):
            parcels = [one if other == self._me else one.contiguous() for other, one in enumerate(split)]
            found = self._exchange.swap(self._me, way, parcels)
        if way == TO_HEADS:
            transfer.tokens = [parcel.shape[1] for parcel in found.parcels]
        return found

    def finish(self, way: str, arriving: Arriving) -> Tensor:
        """Waits for the parcels and returns them concatenated."""
        arriving.wait()
        return torch.cat(list(arriving.parcels), dim=1 if way == TO_HEADS else 2)


def _empty(like: Tensor, way: str, arriving: Arriving) -> Tensor:
    """Returns a tensor of the arriving tensor's shape, without memory."""
    axis = 1 if way == TO_HEADS else 2
    sizes = list(arriving.parcels[0].shape)
    sizes[axis] = sum(parcel.shape[axis] for parcel in arriving.parcels)
    return like.new_empty(()).expand(sizes)


class _Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, seat: TokenSeat, transfer: _Transfer, part: Tensor) -> Tensor:
        ctx.seat, ctx.transfer = seat, transfer
        transfer.arriving = seat.start(transfer.way, transfer, part)
        return _empty(part, transfer.way, transfer.arriving)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *_empty: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        transfer: _Transfer = ctx.transfer
        arriving, transfer.gradient = transfer.gradient, None
        assert arriving is not None
        return None, None, ctx.seat.finish(_reverse(transfer.way), arriving)


class _Arrive(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, seat: TokenSeat, transfer: _Transfer, empty: Tensor) -> Tensor:
        ctx.seat, ctx.transfer, ctx.sizes = seat, transfer, empty.shape
        arriving, transfer.arriving = transfer.arriving, None
        assert arriving is not None
        return seat.finish(transfer.way, arriving)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        transfer: _Transfer = ctx.transfer
        transfer.gradient = ctx.seat.start(_reverse(transfer.way), transfer, gradients[0])
        return None, None, gradients[0].new_empty(()).expand(ctx.sizes)


def _reverse(way: str) -> str:
    return TO_TOKENS if way == TO_HEADS else TO_HEADS
