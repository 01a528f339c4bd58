"""Ring attention: keys and values go from rank to rank, and each rank attends to them with its own queries.

Each rank attends to one part of the keys at a time; results are merged by their log-sum-exp, in at least float32. In
the backward pass, keys and values go round again, with their gradients in at least float32. Every rank has all heads,
so any number of heads works. Shapes: B batch, n own tokens, H heads, d head_dim.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, cast
from uuid import uuid4
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..errors import ConfigError
from ..words import first_line

_OPS = torch.ops.aten


class Turns(Protocol):
    """The ring of ranks, such as `parallel.RankExchange`."""

    @property
    def me(self) -> int:
        """The number of this rank."""
        ...

    @property
    def sizes(self) -> Mapping[int, Sequence[int]]:
        """Number of tokens of this rank in a layer -> those of every rank."""
        ...

    def turn(self, tensors: Sequence[Tensor], tokens: int) -> Callable[[], list[Tensor]]:
        """Begins to send `tensors` (B, m, H, d) to the next rank, and to receive those of the previous rank.

        Returns a function that waits for the received tensors (B, tokens, H, d) and returns them.
        """
        ...


class RingSeat:
    """The attention of one rank in a ring."""

    def __init__(self, ring: Turns) -> None:
        self.joined = False
        """whether the ranks split the tokens of this pass; False: this rank has all tokens"""
        self._ring = _rings[id(ring)] = ring

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Returns the attention of own queries (B, n, H, d) to the keys and values of all ranks, (B, n, H, d)."""
        return cast(Tensor, _Ring.apply(self._ring, query, key, value))


def check_ring(*, device: torch.device, dtype: torch.dtype, head_dim: int) -> None:
    """Raises ConfigError if torch's FlashAttention, which returns the log-sum-exp, does not run on `device`."""
    try:
        one = torch.zeros(1, 1, 64, head_dim, device=device, dtype=dtype)
        out, total = _attended(one, one, one)
        _gradients(one, one, one, one, out, total)
    except (RuntimeError, NotImplementedError) as error:
        raise ConfigError(
            f"context_exchange ring needs torch's flash attention, which {device} lacks for "
            f"{str(dtype).removeprefix('torch.')} ({first_line(error)}). Set model.placement.context_exchange to "
            "all-to-all."
        ) from error


_rings: WeakValueDictionary[int, Turns] = WeakValueDictionary()
_NAMESPACE = f"wan_ring_{uuid4().hex[:12]}"
"""namespace of the operator, new for each import of this file, because torch refuses to define an operator twice"""
_operators = torch.library.Library(_NAMESPACE, "DEF")
"""ring attention is one operator, so that a checkpoint policy can keep its result by name (`keeping.py`)"""
_operators.define("ring_scaled_dot_product(Tensor query, Tensor key, Tensor value, int ring) -> (Tensor, Tensor)")


def _in_turns(query: Tensor, key: Tensor, value: Tensor, number: int) -> tuple[Tensor, Tensor]:
    """Returns the attention of own queries (B, n, H, d), and the log-sum-exp (B, H, n). `number`: id of the ring."""
    ring = _rings[number]
    sizes, mine = ring.sizes[key.shape[1]], query.transpose(1, 2)
    here, out, total = [key.contiguous(), value.contiguous()], None, None
    for owner in _owners(ring.me, len(sizes)):
        last = owner == (ring.me + 1) % len(sizes)
        arriving = None if last else ring.turn(here, sizes[owner - 1])
        found, its_total = _attended(mine, *(one.transpose(1, 2) for one in here))
        if out is None or total is None:
            out, total = found.to(its_total.dtype), its_total
        else:
            both = torch.logaddexp(total, its_total)
            out.mul_((total - both).exp_().unsqueeze(-1))
            out.addcmul_(found.to(out.dtype), (its_total - both).exp_().unsqueeze(-1))
            total = both
        here = here if arriving is None else arriving()
    assert out is not None
    assert total is not None
    return out.to(query.dtype).transpose(1, 2), total


_operators.impl("ring_scaled_dot_product", _in_turns, "CompositeExplicitAutograd")


class _Ring(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ring: Turns, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        attended, total = getattr(torch.ops, _NAMESPACE).ring_scaled_dot_product(query, key, value, id(ring))
        ctx.ring = ring
        ctx.save_for_backward(query, key, value, attended, total)
        return attended

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        ring: Turns = ctx.ring
        query, key, value, attended, total = ctx.saved_tensors
        sizes, here = ring.sizes[key.shape[1]], [key.contiguous(), value.contiguous()]
        mine, out, above = (one.transpose(1, 2) for one in (query, attended, gradients[0]))
        of_queries, home = torch.zeros(query.shape, dtype=total.dtype, device=query.device), list[Tensor]()
        bringing: Callable[[], list[Tensor]] | None = None
        for owner in _owners(ring.me, len(sizes)):
            last = owner == (ring.me + 1) % len(sizes)
            arriving = None if last else ring.turn(here, sizes[owner - 1])
            found = _gradients(above, mine, *(one.transpose(1, 2) for one in here), out, total)
            first, *of_keys = (one.transpose(1, 2) for one in found)
            of_queries += first
            # The gradients of the keys and values at this rank, as summed by the previous ranks; this rank adds its
            # part.
            sums = [torch.zeros_like(one, dtype=total.dtype) for one in here] if bringing is None else bringing()
            for own, part in zip(sums, of_keys, strict=True):
                own += part
            if owner == ring.me:
                home = sums
            else:
                bringing = ring.turn(sums, sizes[owner - 1])
            here = here if arriving is None else arriving()
        for own, part in zip(home, () if bringing is None else bringing(), strict=True):
            own += part
        return None, of_queries.to(query.dtype), *(one.to(key.dtype) for one in home)


def _owners(me: int, ranks: int) -> list[int]:
    """Returns the owner of the keys and values at a rank in each turn: itself, the previous rank, and so on."""
    return [(me - turn) % ranks for turn in range(ranks)]


def _attended(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the attention to some keys, (B, H, n, d), and the log-sum-exp (B, H, n) in at least float32."""
    if query.device.type == "cpu":
        return _OPS._scaled_dot_product_flash_attention_for_cpu(query, key, value)
    return _OPS._scaled_dot_product_flash_attention(query, key, value)[:2]


def _gradients(
    above: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, total: Tensor
) -> Sequence[Tensor]:
    """Returns the gradients of queries, and of some keys and values. `out`, `total`: result and log-sum-exp of all."""
    given = (above, query, key, value, out, total)
    if query.device.type == "cpu":
        return _OPS._scaled_dot_product_flash_attention_for_cpu_backward(*given, 0.0, False)
    random = torch.empty(2, dtype=torch.uint64, device=query.device)  # the seed of dropout, which is not used
    sizes = (query.shape[2], key.shape[2])
    return _OPS._scaled_dot_product_flash_attention_backward(
        *given, None, None, *sizes, 0.0, False, random, random.new_empty(())
    )
