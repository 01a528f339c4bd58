"""Parts of the tokens of a pass, one for each copy of the model (split tokens).

A part has the same number of tokens from every latent frame. So each frame, which may have a timestep of its own, keeps
an equal number of rows, and nothing is padded. The tokens of a part keep their own positions.
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
    """The tokens that one copy runs."""

    numbers: Tensor
    """(n,) int64, rising, among all tokens"""
    passages: tuple[Passage, ...] = ()
    """of these tokens alone"""

    def of(self, tensor: Tensor, axis: int = 1) -> Tensor:
        """Returns those of the N tokens along `axis` that belong to the part, (..., n, ...), contiguous."""
        return tensor.index_select(axis, self.numbers)


def video_places(part: Part, frames: int, skipped: int) -> Tensor:
    """Returns where the tokens of the video of a part stand among those of the video, (n,) int64 on its device.

    `frames`: latent frames, with the one of a reference image; `skipped`: the tokens of that, 0 without one.
    """
    own = len(part.numbers) // frames if skipped else 0  # rising, and equally many of each frame
    return part.numbers[own:] - skipped


def parts_of(
    frames: int,
    in_frame: int,
    devices: Sequence[torch.device],
    passages: Sequence[Passage] = (),
    proportions: Sequence[int] = (),
    seats: Sequence[TokenSeat] = (),
) -> list[Part]:
    """Returns one part for each device, on it: of `frames` latent frames of `in_frame` tokens, in these `proportions`,
    () for equal parts. Frames of less than two tokens for each device are shared out equally.

    The tokens that go through a passage are shared out alike, so no layer waits for a copy with more of them. Parts are
    dealt so for the first passage; for the layers of a further one tokens go to other copies, by `seats`.
    Raises ConfigError where a device would have no token of a frame.
    """
    check_shared_out(in_frame, len(devices))
    of_each = proportions if proportions and in_frame >= 2 * len(devices) else (1,) * len(devices)
    if not passages:
        sizes, found = shares(in_frame, of_each, least=1), []
        for number, device in enumerate(devices):  # made there: a copy of pageable memory may let the host wait
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
    """Raises ConfigError where the tokens of a clip cannot be shared out over `parts` devices."""
    if in_frame < parts:
        raise ConfigError(
            f"A latent frame of the clips has {in_frame} tokens, too few to split over {parts} devices. Use larger "
            "clips, or name fewer devices in Split Across GPUs."
        )


def _routed(
    kept: Tensor, passage: Passage, frames: int, in_frame: int, number: int, proportions: Sequence[int]
) -> Part:
    """Returns the part of that number, on the device of `kept`; no size depends on values, so the host never waits."""
    starts = torch.arange(frames, device=kept.device)[:, None] * in_frame
    kept = kept.view(frames, -1) - starts
    passing = torch.ones(frames, in_frame, dtype=torch.int8, device=kept.device).scatter(1, kept, 0)
    passed = passing.argsort(dim=1, descending=True, stable=True)[:, : in_frame - kept.shape[1]]
    # Remainders even out: those of the kept tokens go to the last copies, those of the other tokens to the first.
    few = kept.split(shares(kept.shape[1], proportions, least=1), dim=1)[number]
    others = passed.split(shares(passed.shape[1], proportions[::-1], least=1)[::-1], dim=1)[number]
    numbers, order = torch.cat([few, others], dim=1).sort(dim=1)
    own = torch.arange(frames, device=kept.device)[:, None] * numbers.shape[1]
    places = order.argsort(dim=1)[:, : few.shape[1]].sort(dim=1).values + own
    return Part((numbers + starts).flatten(), (passage._replace(kept=places.flatten()),))


def _regrouped(
    parts: Sequence[Part], seat: TokenSeat, number: int, passage: Passage, frames: int, proportions: Sequence[int]
) -> Passage:
    """Returns a passage of the part of that number, whose tokens in the layers are a share of each frame's `kept`."""
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
    """The way of the tokens of one copy to the layers of a passage, and back; no size depends on values.

    All copies send all of their tokens there, and all that went through back: as much as two layers exchange.
    """

    seat: TokenSeat
    rows: Tensor
    """(k,) where the tokens of this copy in the layers stand among those of all copies, one copy behind the other"""
    places: Tensor
    """(n,) where those of this copy outside stand among all that go through"""
    goes: Tensor
    """(n,) bool, whether they do"""

    def to_layers(self, own: Tensor, axis: int) -> Tensor:
        """As `routing.Regroup` says."""
        found = cast(Tensor, _Moved.apply(self, own if axis else own[None], True))
        return found if axis else found[0]

    def to_owners(self, some: Tensor, before: Tensor) -> Tensor:
        """As `routing.Regroup` says."""
        return torch.where(self.goes[:, None], cast(Tensor, _Moved.apply(self, some, False)), before)

    def moved(self, tokens: Tensor, *, in_layers: bool) -> Tensor:
        """Returns the tokens (B, n, D) that this copy has `in_layers`, or outside: zero where they pass by."""
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
