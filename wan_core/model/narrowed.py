"""Casts a layer's trained matrices to the compute dtype in one kernel per pass, instead of one kernel per matrix.

A LoRA has two matrices for each of a block's ten linears. Casting each where it is used, and each gradient back, is a
third of a block's kernel launches. Values are bitwise equal, and gradients are summed in autograd's order.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ..kernels import having


class Narrowed:
    """The matrices of one linear's LoRA in the compute dtype, while a pass of its layer runs."""

    def __init__(self) -> None:
        self.matrices: tuple[Tensor, ...] = ()
        """empty outside a pass"""


class Gradients:
    """Adds gradients of the cast matrices to the float32 parameters they were cast from."""

    def __init__(self, leaves: list[tuple[nn.Parameter, Tensor]]) -> None:
        self._leaves = leaves

    @torch.no_grad()
    def gather(self) -> None:
        """Moves the matrices' `.grad` into the parameters' `.grad`; call it after each backward pass."""
        reached = [(p, leaf, leaf.grad) for p, leaf in self._leaves if leaf.grad is not None]
        if not reached:
            return
        found = [torch.empty_like(p) for p, _, _ in reached]
        torch._foreach_copy_(found, [gradient for _, _, gradient in reached])  # pyright: ignore[reportPrivateUsage]
        sums: list[Tensor] = []
        more: list[Tensor] = []
        for (p, leaf, _), gradient in zip(reached, found, strict=True):
            leaf.grad = None
            if p.grad is None:
                p.grad = gradient
            else:
                sums.append(p.grad)
                more.append(gradient)
        if sums:
            torch._foreach_add_(sums, more)  # pyright: ignore[reportPrivateUsage]


@contextmanager
def narrowed(layer: nn.Module, *, backward: bool) -> Iterator[Gradients]:
    """Inside, linears of `layer` with a LoRA read their matrices, in the compute dtype, from their `Narrowed`.

    Such a linear has an attribute `narrowed: Narrowed` and a method `to_narrow(dtype)`, which lists its float32
    parameters to cast. `backward`: the cast matrices require grad; call `Gradients.gather` after the backward pass.
    """
    holders: list[tuple[Narrowed, list[nn.Parameter]]] = []
    dtype: torch.dtype | None = getattr(getattr(layer, "numerics", None), "compute", None)
    if dtype is not None and not torch.compiler.is_compiling():
        for module, holder in having(layer, "narrowed"):
            if parameters := module.to_narrow(dtype):
                holders.append((holder, parameters))
    leaves: list[tuple[nn.Parameter, Tensor]] = []
    if holders and dtype is not None:
        leaves = _converted([parameters for _, parameters in holders], dtype)
        of = {id(p): one.requires_grad_(backward) for p, one in leaves}
        for holder, parameters in holders:
            holder.matrices = tuple(of[id(p)] for p in parameters)
    try:
        yield Gradients(leaves)
    finally:
        for holder, _ in holders:
            holder.matrices = ()


@torch.no_grad()
def _converted(parameters: list[list[nn.Parameter]], dtype: torch.dtype) -> list[tuple[nn.Parameter, Tensor]]:
    """Returns pairs of a parameter and its copy in `dtype`.

    In memory the first matrices of all linears are adjacent, then the second ones. So q, k and v, which read the same
    input, can be multiplied as one matrix.
    """
    wide = [p for same in zip(*parameters, strict=True) for p in same]
    memory = torch.empty(sum(p.numel() for p in wide), dtype=dtype, device=wide[0].device)
    narrow = [part.view(p.shape) for p, part in zip(wide, memory.split([p.numel() for p in wide]), strict=True)]
    torch._foreach_copy_(narrow, wide)  # pyright: ignore[reportPrivateUsage]
    # Detached: views of `memory` would share one autograd graph.
    return [(p, part.detach()) for p, part in zip(wide, narrow, strict=True)]
