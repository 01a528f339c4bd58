"""Context parallel: several ranks train one clip, each a part of its tokens.

Tokens are split as between the copies of one process (`tokens.py`) and exchanged by torch.distributed. Each rank
computes the loss of all tokens, from the same clip and noise, and runs the backward pass of its own tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..errors import ConfigError
from ..kernels import RingSeat
from ..lora import adapter_parameters
from ..model import Conditioning, Passage, Route, WanTransformer
from ..model.attention import WanSelfAttention
from ..model.heads import TO_HEADS, Arriving, TokenSeat, shares
from ..model.parts import Part, parts_of, video_places
from ..model.transformer import grid_of

ALL_TO_ALL, RING = "all-to-all", "ring"
_SUMMED_BYTES = 4
"""bytes per value of a gradient that is summed around a ring"""


@dataclass(frozen=True)
class ClipRanks:
    """The ranks that train one clip together."""

    group: Any
    """torch's process group of these ranks: NCCL for GPUs, gloo for CPUs"""
    ranks: Sequence[int]
    """their ranks in the run"""
    me: int
    """index of this rank in `ranks`"""
    guarded: Callable[[], AbstractContextManager[None]]
    """inside, an error of torch.distributed becomes RankLost"""


def exchange_of(wanted: str, num_heads: int, parts: int) -> str:
    """Returns all-to-all or ring for `wanted`; for auto, all-to-all if the heads divide evenly, else ring.

    Raises ConfigError for all-to-all with fewer heads than ranks.
    """
    if wanted == ALL_TO_ALL and num_heads < parts:
        raise ConfigError(
            f"context_exchange all-to-all gives each of {parts} processes some of the {num_heads} heads of this model. "
            "Set model.placement.context_exchange to ring."
        )
    return wanted if wanted != "auto" else RING if num_heads % parts else ALL_TO_ALL


def sent_bytes(
    exchange: str, cards: int, tokens: Sequence[int], again: int, width: int, value_bytes: int
) -> tuple[int, int]:
    """Returns the bytes that each of `cards` sends for self-attention in the forward and in the backward pass.

    `tokens`: tokens of all cards and clips in each layer. `again`: their sum over recomputed layers. `width`: model
    width. `value_bytes`: bytes of a value. All-to-all sends queries, keys, values and results, except for its own part.
    Ring sends keys and values to every other card, and in the backward pass their gradients in at least float32.
    Recomputed layers send the bytes of the forward pass again.
    """
    every = sum(tokens) * width // cards
    recomputed = again * width // cards
    if exchange == RING:
        there = 2 * value_bytes * (cards - 1)
        gradients = 2 * max(value_bytes, _SUMMED_BYTES) * (cards - 1)
        return every * there, every * (there + gradients) + recomputed * there
    there = 4 * value_bytes * (cards - 1)
    return every * there // cards, (every + recomputed) * there // cards


class RankExchange:
    """Exchanges tensors between the ranks that train one clip. Every rank calls the same methods in the same order."""

    def __init__(self, clip: ClipRanks, num_heads: int) -> None:
        self.me = clip.me
        self.sizes: dict[int, list[int]] = {}
        """number of tokens of this rank in a layer -> those of every rank, in the current pass"""
        self._clip, self._heads = clip, shares(num_heads, len(clip.ranks))
        self._sent = 0

    def swap(self, me: int, what: str, parcels: Sequence[Tensor]) -> Arriving:
        """Begins to send each rank its parcel, and to receive those of all ranks (`heads.Swaps`)."""
        own = parcels[me]
        batch, tokens, heads, width = own.shape
        if what == TO_HEADS:
            sizes = [(batch, count, heads, width) for count in self.sizes[tokens]]
        else:
            sizes = [(batch, tokens, count, width) for count in self._heads]
        return self.between(parcels, sizes)

    def between(self, parcels: Sequence[Tensor], sizes: Sequence[tuple[int, ...]]) -> Arriving:
        """`swap` for parcels of any sizes; `sizes`: of the received parcels, by rank."""
        found = [parcels[self.me].new_empty(size) for size in sizes]
        found[self.me] = parcels[self.me]
        others = [rank for rank in range(len(sizes)) if rank != self.me]
        wait = self._start([(rank, parcels[rank]) for rank in others], [(rank, found[rank]) for rank in others])
        return Arriving(found, wait)

    def turn(self, tensors: Sequence[Tensor], tokens: int) -> Callable[[], list[Tensor]]:
        """Begins a turn of a ring (`ring.Turns`)."""
        count = len(self._heads)
        found = [one.new_empty(one.shape[0], tokens, *one.shape[2:]) for one in tensors]
        wait = self._start(
            [((self.me + 1) % count, one) for one in tensors], [((self.me - 1) % count, one) for one in found]
        )

        def arrived() -> list[Tensor]:
            wait()
            return found

        return arrived

    def _start(self, out: Sequence[tuple[int, Tensor]], into: Sequence[tuple[int, Tensor]]) -> Callable[[], None]:
        """Begins to send `out` and receive `into`, (rank, tensor) each; returns a function that waits for all."""
        from torch.distributed import P2POp, batch_isend_irecv, irecv, isend

        clip, kept = self._clip, [(isend, rank, one.contiguous()) for rank, one in out]
        # Without tags, because two ranks exchange their messages in the same order.
        ways = [*((irecv, rank, one) for rank, one in into), *kept]
        with clip.guarded():
            ops = [P2POp(way, one, clip.ranks[rank], clip.group) for way, rank, one in ways if one.numel()]
            works = batch_isend_irecv(ops) if ops else []

        def wait() -> None:
            with clip.guarded():
                for work in works:
                    work.wait()
            kept.clear()  # Sent tensors must not be freed before this.

        return wait


def check_clip(in_frame: int, parts: int, routes: Sequence[Route]) -> None:
    """Raises ConfigError if clips with `in_frame` tokens in a latent frame cannot be split over `parts` ranks."""
    if in_frame < parts:
        raise ConfigError(
            f"A latent frame of the clips has {in_frame} tokens, too few for {parts} processes. Set "
            f"model.placement.context_parallel to {in_frame} or less, or use larger clips."
        )
    if len(routes) > 1:
        raise ConfigError(
            f"tread_routes has {len(routes)} routes, and context_parallel takes one. Keep one, or set "
            "model.placement.context_parallel to 1."
        )
    for route in routes:
        if (fewest := min(route.kept(in_frame), in_frame - route.kept(in_frame))) < parts:
            raise ConfigError(
                f"tread_routes divides the {in_frame} tokens of a latent frame so that {fewest} of them are too few "
                "for "
                f"{parts} processes. Set selection_ratio nearer to 0.5, or model.placement.context_parallel to 1."
            )


class RankTokens:
    """The `Team` of a model whose copies are on other ranks, with equal adapters."""

    copies: Sequence[WanTransformer] = ()

    def __init__(self, model: WanTransformer, clip: ClipRanks, exchange: str) -> None:
        """`exchange`: ALL_TO_ALL or RING."""
        self._model, self._count = model, len(clip.ranks)
        self._exchange = RankExchange(clip, model.shape.num_heads)
        me, heads = clip.me, model.shape.num_heads
        ring = exchange == RING
        self.seat = RingSeat(self._exchange) if ring else TokenSeat(self._exchange, me, self._count, heads)
        for module in model.modules():
            if isinstance(module, WanSelfAttention):
                module.seat = self.seat
        self.watches = False

    def patches(
        self, latent: Tensor, timestep: Tensor, text: Tensor, given: Conditioning, passages: Sequence[Passage]
    ) -> Tensor:
        """Returns `WanTransformer.patches` of all tokens, (B, N, C), on every rank."""
        (frames, height, width), more = grid_of(latent), given.reference is not None
        parts = parts_of(frames + more, height * width, [latent.device] * self._count, passages)
        self._exchange.sizes = _sizes(parts, self._exchange.me)
        part = parts[self._exchange.me]
        with self._joined():
            own = self._model.patches(latent, timestep, text, given, part.passages, part)
            places = [video_places(one, frames + more, height * width * more) for one in parts]
            return cast(Tensor, _Gathered.apply(self, places, own))

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Inside, passes without gradients are split too. Every rank of the clip calls it."""
        self.watches = True
        try:
            yield
        finally:
            self.watches = False

    def sum_gradients(self) -> None:
        """Multiply the gradients by the number of ranks of a clip, because the run later averages over all ranks, and
        ranks of one clip must be summed."""
        for parameter in adapter_parameters(self._model).values():
            if parameter.grad is not None:
                parameter.grad.mul_(self._count)

    def forget_gradients(self) -> None:
        """Does nothing: there are no other copies in this process."""

    def gathered(self, own: Tensor, places: Sequence[Tensor]) -> Tensor:
        """Returns the tokens of all ranks in order, (B, N, C), from this rank's tokens (B, n, C)."""
        batch, _, width = own.shape
        arriving = self._exchange.between([own] * self._count, [(batch, len(at), width) for at in places])
        arriving.wait()
        whole = own.new_empty(batch, sum(map(len, places)), width)
        for at, found in zip(places, arriving.parcels, strict=True):
            whole.index_copy_(1, at, found)
        return whole

    def walks_back(self, places: Sequence[Tensor], gradient: Tensor) -> Tensor:
        """Returns this rank's part (B, n, C) of a gradient (B, N, C), and makes self-attention exchange tokens until
        the backward pass ends."""
        self.seat.joined = True
        torch.autograd.Variable._execution_engine.queue_callback(self._leave)  # pyright: ignore
        return gradient.index_select(1, places[self._exchange.me])

    def _leave(self) -> None:
        self.seat.joined = False

    @contextmanager
    def _joined(self) -> Iterator[None]:
        self.seat.joined = True
        try:
            yield
        finally:
            self.seat.joined = False


def _sizes(parts: Sequence[Part], me: int) -> dict[int, list[int]]:
    """Returns number of tokens of part `me` -> those of every part, for layers outside and inside of a route."""
    every = [len(part.numbers) for part in parts]
    some = [len(passage.kept) for part in parts for passage in part.passages] or every
    return {every[me]: every, some[me]: some}


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, team: RankTokens, places: Sequence[Tensor], own: Tensor) -> Tensor:
        ctx.team, ctx.places = team, places
        return team.gathered(own, places)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return None, None, ctx.team.walks_back(ctx.places, gradients[0])
