"""A block in two stages: stage 1 mixes tokens; stage 2 computes each token independently, so it may run in chunks.

Stage 2 (cross-attention, feed-forward) has the widest tensors of a block. In chunks they exist for a few thousand
tokens at a time. N tokens, T time rows: one for all tokens, or one for every N / T consecutive tokens.
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
"""largest number of tokens in a chunk, over the complete batch; a matrix product of so many rows still fills a GPU"""

Shared = tuple[Tensor, ...]
"""tensors that every chunk reads and none modifies"""


class Stages(NamedTuple):
    """The functions of a block; `stages(*streams, constants)` runs them."""

    layer: nn.Module
    mix: Callable[..., Tensor]
    """stage 1: (*streams, constants) -> (B, N, D), a new tensor"""
    share: Callable[[Any], Shared]
    """constants -> further tensors that stage 2 reads, computed once for all chunks"""
    rest: Callable[[Tensor, Any, Shared], Tensor | tuple[Tensor, ...]]
    """stage 2: (a chunk (B, n, D), its constants, shared) -> one or more tensors (B, n, ...); the first replaces the
    chunk, and may be the same tensor if no gradient is needed"""
    chunk_tokens: int = CHUNK_TOKENS
    """0: never in chunks"""
    hold: Callable[[], AbstractContextManager[None]] = nullcontext
    """inside, stage 2 keeps dequantized weights for the next chunk"""
    again: Callable[..., Tensor | tuple[Tensor, ...]] | None = None
    """recomputes `rest` for the backward pass: builds the same graph, but the first result may have undefined values,
    and the backward pass may overwrite the chunk; None: `rest`"""
    keep: Callable[[], AbstractContextManager[None]] = nullcontext
    """inside, both stages keep cast norm weights and summed modulation"""

    def __call__(self, *inputs: Any) -> Tensor | tuple[Tensor, ...]:
        return in_stages(self, *inputs)


def in_stages(stages: Stages, *inputs: Any) -> Tensor | tuple[Tensor, ...]:
    """Runs both stages; inputs: the streams (B, N, D), then the constants.

    It is a function because torch.compile 2.6 cannot call a tuple that holds a module.
    """
    *streams, constants = inputs
    # With views, autograd sums the gradients of the constants within the block first, as checkpointing does.
    constants = constants.moved(lambda value: value.view_as(value) if value.requires_grad else value)
    with stages.keep():
        with scope("stage 1"):
            tokens = stages.mix(*streams, constants)
        with scope("stage 2"):
            return _in_chunks(stages, tokens, constants)


def chunks(stages: Stages, tokens: Tensor, constants: Any) -> list[tuple[slice, Any]]:
    """Splits tokens (B, N, D) into chunks; returns the slice and the constants of each.

    With several time rows, or tokens of frames, a chunk consists of complete frames, or lies within one frame.
    """
    of_frames = getattr(constants, "of_frames", None)
    count, rows = tokens.shape[1], constants.time_rows.shape[1]
    rows = rows if of_frames is None else max(rows, of_frames.shape[1])
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
        if of_frames is not None:
            own = own._replace(of_frames=of_frames[:, first:last])
        found += [(part, own) for part in _even(first * per_row, last * per_row, most)]
    return found


def _even(start: int, stop: int, most: int) -> list[slice]:
    """Splits `start` to `stop` into the fewest slices of at most `most` tokens, nearly equal ones."""
    number = -(-(stop - start) // most)
    edges = [start + (stop - start) * i // number for i in range(number + 1)]
    return [slice(a, b) for a, b in pairwise(edges)]


def _in_chunks(stages: Stages, tokens: Tensor, constants: Any) -> Tensor | tuple[Tensor, ...]:
    """Runs stage 2 on `tokens` (B, N, D); it may overwrite them if no gradient is needed."""
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
    """Returns a tuple as it is, a tensor as a tuple of one."""
    return outputs if isinstance(outputs, tuple) else (outputs,)
