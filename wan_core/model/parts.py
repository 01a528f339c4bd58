"""Splits the tokens of a pass into one part for each copy of the model (Split Across GPUs, tokens).

A part has the same number of tokens in every latent frame. So frames, which may have different timesteps, have equally
many tokens, and nothing is padded. Tokens keep their RoPE positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..errors import ConfigError
from .conditioning import sent
from .heads import TokenSeat, shares
from .routing import Passage


class Part(NamedTuple):
    """The tokens of one copy."""

    numbers: Tensor
    """(n,) int64 ascending indices among all N tokens"""
    passages: tuple[Passage, ...] = ()
    """routes of these tokens"""

    def of(self, tensor: Tensor, axis: int = 1) -> Tensor:
        """Returns the part's tokens along `axis`: (..., N, ...) -> (..., n, ...), contiguous."""
        return tensor.index_select(axis, self.numbers)


def video_places(part: Part, frames: int, skipped: int) -> Tensor:
    """Returns the indices, among the video's tokens, of the part's tokens without a reference image: (n,) int64.

    `frames`: number of latent frames, including a reference image; `skipped`: tokens of the reference image, or 0.
    """
    own = len(part.numbers) // frames if skipped else 0  # a part has the same number of tokens of each frame
    return part.numbers[own:] - skipped


def parts_of(
    frames: int,
    in_frame: int,
    devices: Sequence[torch.device],
    passages: Sequence[Passage] = (),
    proportions: Sequence[int] = (),
    seats: Sequence[TokenSeat] = (),
) -> list[Part]:
    """Splits `frames` latent frames of `in_frame` tokens into one part per device, whose tensors lie on that device.

    `proportions`: sizes of the parts relative to each other; (), or less than two tokens per device and frame: equal
    parts. Tokens that a route keeps are split in the same proportions, so that no copy waits in its layers. The parts
    are chosen for the first route; for a further route the copies exchange tokens, by `seats`.
    Raises ConfigError if a device would have no token of a frame.
    """
    check_shared_out(in_frame, len(devices))
    of_each = proportions if proportions and in_frame >= 2 * len(devices) else (1,) * len(devices)
    if not passages:
        sizes, found = shares(in_frame, of_each, least=1), []
        # Indices are built on the device, because a copy from pageable memory may block the host.
        for number, device in enumerate(devices):
            every = torch.arange(frames * in_frame, device=device).view(frames, in_frame)
            found.append(Part(every.split(sizes, dim=1)[number].flatten()))
        return found
    first, *further = passages
    parts = [
        _routed(sent(first.kept, device), first, frames, in_frame, number, of_each)
        for number, device in enumerate(devices)
    ]
    for passage in further:
        groups = [_regrouped(parts, seat, number, passage, frames, of_each) for number, seat in enumerate(seats)]
        parts = [part._replace(passages=(*part.passages, new)) for part, new in zip(parts, groups, strict=True)]
    return parts


def check_shared_out(in_frame: int, parts: int) -> None:
    """Raises ConfigError if a latent frame has fewer tokens than there are devices (`parts`)."""
    if in_frame < parts:
        raise ConfigError(
            f"A latent frame of the clips has {in_frame} tokens, too few to split over {parts} devices. Use larger "
            "clips, or name fewer devices in Split Across GPUs."
        )


def _routed(
    kept: Tensor, passage: Passage, frames: int, in_frame: int, number: int, proportions: Sequence[int]
) -> Part:
    """Returns part `number` for a route, on the device of `kept`. No shape depends on values: the host never waits."""
    starts = torch.arange(frames, device=kept.device)[:, None] * in_frame
    kept = kept.view(frames, -1) - starts
    passing = torch.ones(frames, in_frame, dtype=torch.int8, device=kept.device).scatter(1, kept, 0)
    passed = passing.argsort(dim=1, descending=True, stable=True)[:, : in_frame - kept.shape[1]]
    # Remainders balance: the last copies get one more kept token, the first copies one more of the other tokens.
    few = kept.split(shares(kept.shape[1], proportions, least=1), dim=1)[number]
    others = passed.split(shares(passed.shape[1], proportions[::-1], least=1)[::-1], dim=1)[number]
    numbers, order = torch.cat([few, others], dim=1).sort(dim=1)
    own = torch.arange(frames, device=kept.device)[:, None] * numbers.shape[1]
    places = order.argsort(dim=1)[:, : few.shape[1]].sort(dim=1).values + own
    return Part((numbers + starts).flatten(), (passage._replace(kept=places.flatten()),))


def _regrouped(
    parts: Sequence[Part], seat: TokenSeat, number: int, passage: Passage, frames: int, proportions: Sequence[int]
) -> Passage:
    """Returns the passage of part `number` for a further route: inside, the copies own equal shares of `kept`."""
    device = parts[number].numbers.device
    kept = sent(passage.kept, device).view(frames, -1)
    of_copies = kept.split(shares(kept.shape[1], proportions, least=1), dim=1)
    numbers = torch.cat([sent(part.numbers, device) for part in parts])
    rows = torch.empty_like(numbers).scatter(0, numbers, torch.arange(len(numbers), device=device))
    order = torch.cat([some.flatten() for some in of_copies])
    places = torch.full_like(numbers, -1).scatter(0, order, torch.arange(len(order), device=device))
    mine, own = of_copies[number].flatten(), places[parts[number].numbers]
    return Passage(passage.first, passage.last, mine, _Regrouped(seat, rows[mine], own.clamp(min=0), own >= 0))


class _Regrouped(NamedTuple):
    """Moves tokens between copies before and after a route's layers. No shape depends on values.

    Both times all copies gather all tokens, as much traffic as the attention of two layers.
    """

    seat: TokenSeat
    rows: Tensor
    """(k,) indices of this copy's tokens in the route, among the concatenated tokens of all copies"""
    places: Tensor
    """(n,) indices of this copy's own tokens among the kept tokens of all copies; 0 for a token that skips the route"""
    goes: Tensor
    """(n,) bool: whether the own token goes through the route"""

    def to_layers(self, own: Tensor, axis: int) -> Tensor:
        """Own tokens along `axis` -> this copy's tokens in the route's layers."""
        found = cast(Tensor, _Moved.apply(self, own if axis else own[None], True))
        return found if axis else found[0]

    def to_owners(self, some: Tensor, before: Tensor) -> Tensor:
        """Returns own tokens (B, n, D) after the route: the results of the copies that ran them, else `before`.

        `some` (B, k, D): the tokens that this copy ran in the route.
        """
        return torch.where(self.goes[:, None], cast(Tensor, _Moved.apply(self, some, False)), before)

    def moved(self, tokens: Tensor, *, in_layers: bool) -> Tensor:
        """Gathers all tokens, and returns this copy's in the route (B, k, D) if `in_layers`; else its own (B, n, D),
        zero for tokens that skip the route."""
        found = self.seat.gather(tokens).index_select(1, self.rows if in_layers else self.places)
        return found if in_layers else found.masked_fill(~self.goes[:, None], 0)


class _Moved(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, group: _Regrouped, tokens: Tensor, in_layers: bool) -> Tensor:
        ctx.group, ctx.in_layers = group, in_layers
        return group.moved(tokens, in_layers=in_layers)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return None, ctx.group.moved(gradients[0], in_layers=not ctx.in_layers), None
