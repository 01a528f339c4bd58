"""Ring attention: own queries meet the keys and values of all ranks, which go round from rank to rank.

Each rank attends to one part of the keys at a time; results are merged by their log-sum-exp, in float32 at least.
In the backward pass keys and values go round again, with their gradients, in float32 too.
Shapes: B batch, n own tokens, H heads, d head_dim. All heads stay on each rank, so their number need not divide.
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
        """The tokens of each rank in a layer, by those of this rank."""
        ...

    def turn(self, tensors: Sequence[Tensor], tokens: int) -> Callable[[], list[Tensor]]:
        """Begins to send `tensors` (B, m, H, d) to the next rank; returns what waits for those of the rank before.

        `tokens`: how many of them arrive, (B, tokens, H, d) each.
        """
        ...


class RingSeat:
    """The attention of a rank among those of a ring."""

    def __init__(self, ring: Turns) -> None:
        self.joined = False
        """whether the ranks run together now; otherwise this one has all tokens"""
        self._ring = _rings[id(ring)] = ring

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Own tokens (B, n, H, d) each -> what they attend to among the tokens of all ranks, (B, n, H, d)."""
        return cast(Tensor, _Ring.apply(self._ring, query, key, value))


def check_ring(*, device: torch.device, dtype: torch.dtype, head_dim: int) -> None:
    """Raises ConfigError where torch has no kernel on `device` that returns the log-sum-exp. Tries one on 64 tokens."""
    try:
        one = torch.zeros(1, 1, 64, head_dim, device=device, dtype=dtype)
        out, total = _attended(one, one, one)
        _gradients(one, one, one, one, out, total)
    except (RuntimeError, NotImplementedError) as error:
        raise ConfigError(
            f"context_exchange ring needs torch's flash attention, which {device} has not in "
            f"{str(dtype).removeprefix('torch.')} ({first_line(error)}). Set model.placement.context_exchange to "
            "all-to-all."
        ) from error


_rings: WeakValueDictionary[int, Turns] = WeakValueDictionary()
_NAMESPACE = f"wan_ring_{uuid4().hex[:12]}"
"""of each import of this file: torch refuses an operator that is registered twice"""
_operators = torch.library.Library(_NAMESPACE, "DEF")
"""A ring is one operator, with a name by which a checkpoint policy keeps what it returns (`keeping.py`)."""
_operators.define("ring_scaled_dot_product(Tensor query, Tensor key, Tensor value, int ring) -> (Tensor, Tensor)")


def _in_turns(query: Tensor, key: Tensor, value: Tensor, number: int) -> tuple[Tensor, Tensor]:
    """Returns what own queries attend to, (B, n, H, d), and its log-sum-exp (B, H, n); `number`: of the ring."""
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
            # What the ranks before have summed for the local tokens continues with this rank's part.
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
    """Returns whose keys and values a rank has, turn by turn: its own, then those of the rank before, and so on."""
    return [(me - turn) % ranks for turn in range(ranks)]


def _attended(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Returns what queries attend to among some keys, (B, H, n, d), and its log-sum-exp (B, H, n), float32 at least."""
    if query.device.type == "cpu":
        return _OPS._scaled_dot_product_flash_attention_for_cpu(query, key, value)
    return _OPS._scaled_dot_product_flash_attention(query, key, value)[:2]


def _gradients(
    above: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, total: Tensor
) -> Sequence[Tensor]:
    """Returns the gradients of queries, and of some keys and values; `out` and `total` are those of all keys."""
    given = (above, query, key, value, out, total)
    if query.device.type == "cpu":
        return _OPS._scaled_dot_product_flash_attention_for_cpu_backward(*given, 0.0, False)
    random = torch.empty(2, dtype=torch.uint64, device=query.device)  # of dropout, and there is none
    sizes = (query.shape[2], key.shape[2])
    return _OPS._scaled_dot_product_flash_attention_backward(
        *given, None, None, *sizes, 0.0, False, random, random.new_empty(())
    )
