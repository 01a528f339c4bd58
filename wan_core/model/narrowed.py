"""The trained matrices of a layer in the compute dtype, converted together once a pass instead of one by one.

A LoRA of rank 32 has two matrices for each of ten linears of a block: converted where they are used, and their
gradients back, they are a third of a block's kernels. Here all of a layer are one kernel, and their gradients one per
walk. The values are the same to the bit, and gradients are summed in the order in which autograd sums them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ..kernels import having


class Narrowed:
    """The matrices of one adapted linear in the compute dtype, while a pass of its layer runs."""

    def __init__(self) -> None:
        self.matrices: tuple[Tensor, ...] = ()
        """empty outside of such a pass"""


class Gradients:
    """Hands the gradients of narrowed matrices on to the parameters that these were made of."""

    def __init__(self, leaves: list[tuple[nn.Parameter, Tensor]]) -> None:
        self._leaves = leaves

    @torch.no_grad()
    def gather(self) -> None:
        """Adds the gradients in the matrices to `.grad` of the parameters; call it after each backward pass."""
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
def narrowed(layer: nn.Module, *, way_back: bool) -> Iterator[Gradients]:
    """Inside, each adapted linear of `layer` that can reads its matrices from `Narrowed`, in the compute dtype.

    Such a linear has `narrowed: Narrowed` and `to_narrow(dtype)`, the parameters (float32) to convert, or none.
    `way_back`: the matrices want gradients, which `Gradients.gather` hands on.
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
        of = {id(p): one.requires_grad_(way_back) for p, one in leaves}
        for holder, parameters in holders:
            holder.matrices = tuple(of[id(p)] for p in parameters)
    try:
        yield Gradients(leaves)
    finally:
        for holder, _ in holders:
            holder.matrices = ()


@torch.no_grad()
def _converted(parameters: list[list[nn.Parameter]], dtype: torch.dtype) -> list[tuple[nn.Parameter, Tensor]]:
    """Returns each parameter with a copy of it in `dtype`.

    The first ones of all linears lie one behind the other in memory, then the second ones: those of linears that read
    one input are then one matrix.
    """
    wide = [p for same in zip(*parameters, strict=True) for p in same]
    memory = torch.empty(sum(p.numel() for p in wide), dtype=dtype, device=wide[0].device)
    narrow = [part.view(p.shape) for p, part in zip(wide, memory.split([p.numel() for p in wide]), strict=True)]
    torch._foreach_copy_(narrow, wide)  # pyright: ignore[reportPrivateUsage]
    # Each its own variable: a view of `memory` would take part in the graph of the others.
    return [(p, part.detach()) for p, part in zip(wide, narrow, strict=True)]
