"""A layer in two stages: one that mixes tokens, and one that treats each token alone and so may run by chunks.

The second stage (cross-attention, feed-forward) makes the widest tensors of a layer. By chunks they exist for a few
thousand tokens at a time. N tokens, T time rows: one for all tokens, or one for each of T runs of N / T tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .scopes import scope

CHUNK_TOKENS = 4096
"""Tokens of a chunk at most, over the complete batch. A matrix product of this many rows still fills a GPU."""

Shared = tuple[Tensor, ...]
"""what every chunk reads and none changes"""


class Stages(NamedTuple):
    """The work of a layer; called, it runs both stages: `stages(*streams, constants)`."""

    layer: nn.Module
    mix: Callable[..., Tensor]
    """(*streams, constants) -> (B, N, D), a tensor that nobody else holds"""
    share: Callable[[Any], Shared]
    """constants -> what the second stage reads besides tokens and constants, made once for all chunks"""
    rest: Callable[[Tensor, Any, Shared], Tensor | tuple[Tensor, ...]]
    """(some tokens (B, n, D), their constants, what is shared) -> one or more tensors (B, n, ...); the first replaces
    the tokens, and may be they where no gradient is wanted"""
    chunk_tokens: int = CHUNK_TOKENS
    """0: never in chunks"""
    hold: Callable[[], AbstractContextManager[None]] = nullcontext
    """inside, what the second stage dequantizes is kept for the next chunk"""
    again: Callable[..., Tensor | tuple[Tensor, ...]] | None = None
    """`rest` of a layer whose backward pass comes next: the same graph, whose first result is not read, and whose
    backward pass may overwrite the tokens; None: `rest`"""
    keep: Callable[[], AbstractContextManager[None]] = nullcontext
    """inside, what both stages make of small weights is kept from the first to the last"""

    def __call__(self, *inputs: Any) -> Tensor | tuple[Tensor, ...]:
        return in_stages(self, *inputs)


def in_stages(stages: Stages, *inputs: Any) -> Tensor | tuple[Tensor, ...]:
    """Runs both stages of a layer over its streams (B, N, D) and, last, the constants.

    A function, because torch.compile of 2.6 cannot call a tuple that holds a module.
    """
    *streams, constants = inputs
    # A gradient of the constants is summed within the layer first, whether the layer is checkpointed or not.
    constants = constants.moved(lambda value: value.view_as(value) if value.requires_grad else value)
    with stages.keep():
        with scope("stage 1"):
            tokens = stages.mix(*streams, constants)
        with scope("stage 2"):
            return _in_chunks(stages, tokens, constants)


def chunks(stages: Stages, tokens: Tensor, constants: Any) -> list[tuple[slice, Any]]:
    """Returns which tokens of (B, N, D) run together, with their constants; one pair where all do.

    Where there are several time rows, or tokens of a face in each frame, a chunk holds complete frames, or lies within
    one.
    """
    face = getattr(constants, "face", None)
    count, rows = tokens.shape[1], constants.time_rows.shape[1]
    rows = rows if face is None else face.shape[1]
    most = max(1, stages.chunk_tokens // tokens.shape[0])
    if not stages.chunk_tokens or count <= most:
        return [(slice(0, count), constants)]
    if rows == 1:
        return [(part, constants) for part in _even(0, count, most)]
    per_row = count // rows
    together = max(1, most // per_row)
    found = []
    for first in range(0, rows, together):
        last = min(first + together, rows)
        own = constants
        if constants.time_rows.shape[1] > 1:
            own = own._replace(time_rows=constants.time_rows[:, first:last])
        if face is not None:
            own = own._replace(face=face[:, first:last])
        found += [(part, own) for part in _even(first * per_row, last * per_row, most)]
    return found


def _even(start: int, stop: int, most: int) -> list[slice]:
    """Returns the fewest slices of at most `most` tokens, as equal as they can be."""
    number = -(-(stop - start) // most)
    edges = [start + (stop - start) * i // number for i in range(number + 1)]
    return [slice(a, b) for a, b in pairwise(edges)]


def _in_chunks(stages: Stages, tokens: Tensor, constants: Any) -> Tensor | tuple[Tensor, ...]:
    """Runs the second stage over `tokens` (B, N, D), which it may overwrite where no gradient is wanted."""
    parts, shared = chunks(stages, tokens, constants), stages.share(constants)
    if len(parts) == 1:
        return stages.rest(tokens, constants, shared)
    with stages.hold():
        return _each_chunk(stages, tokens, parts, shared)


def _each_chunk(
    stages: Stages, tokens: Tensor, parts: list[tuple[slice, Any]], shared: Shared
) -> Tensor | tuple[Tensor, ...]:
    if torch.is_grad_enabled():
        sizes = [part.stop - part.start for part, _ in parts]
        pieces = tokens.split(sizes, dim=1)
        found = [as_tuple(stages.rest(piece, own, shared)) for piece, (_, own) in zip(pieces, parts, strict=True)]
        first, *more = (torch.cat(same, dim=1) for same in zip(*found, strict=True))
        return (first, *more) if more else first
    others: list[Tensor] = []
    for part, own in parts:
        piece = tokens[:, part]
        first, *more = as_tuple(stages.rest(piece, own, shared))
        others = others or [one.new_empty(one.shape[0], tokens.shape[1], *one.shape[2:]) for one in more]
        if first is not piece:
            piece.copy_(first)
        for whole, one in zip(others, more, strict=True):
            whole[:, part] = one
    return (tokens, *others) if others else tokens


def as_tuple(outputs: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Returns one or more outputs as several."""
    return outputs if isinstance(outputs, tuple) else (outputs,)
