"""Values that are kept while a stage runs, made once for all chunks of tokens: dequantized and converted weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from .walks import having


class HeldValues:
    """Values of one module, kept between `hold` and `release`."""

    def __init__(self) -> None:
        self._holds = False
        self._made: dict[str, Tensor] = {}

    def of(self, name: str, make: Callable[[], Tensor]) -> Tensor:
        """Returns `make()`; while held, what it returned the first time for that name."""
        if not self._holds:
            return make()
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]

    @property
    def holds(self) -> bool:
        """Whether what is made is kept."""
        return self._holds

    def has(self, name: str) -> bool:
        """Returns whether a value of that name is kept."""
        return name in self._made

    def keep(self, name: str, value: Tensor) -> None:
        """Keeps a value that was made elsewhere, and what is made from now on."""
        self._holds = True
        self._made[name] = value

    def hold(self) -> None:
        """Keeps what is made from now on."""
        self._holds = True

    def release(self) -> None:
        """Frees what was kept."""
        self._holds = False
        self._made.clear()


@contextmanager
def values_held(modules: Iterable[nn.Module], *more: HeldValues) -> Iterator[None]:
    """Inside, every linear below `modules` that has a `held: HeldValues` dequantizes its weight at most once; `more`
    is held too.

    A compiled model keeps nothing: its graphs call one opaque operation for each product.
    """
    found: list[HeldValues] = []
    if not torch.compiler.is_compiling():
        found = [*more, *(held for part in modules for _, held in having(part, "held"))]
    for held in found:
        held.hold()
    try:
        yield
    finally:
        for held in found:
            held.release()


def made_together(modules: Iterable[nn.Module], dtype: torch.dtype) -> AbstractContextManager[None]:
    """Inside, linears below `modules` that read their weights in `dtype` one after the other have all of them, made by
    one kernel where they can: a static method `several(linears, dtype)` returns the weights, or None."""
    if torch.compiler.is_compiling():
        return nullcontext()
    linears: list[Any] = [linear for part in modules for linear, _ in having(part, "several")]
    made = linears[0].several(linears, dtype) if len(linears) > 1 else None
    return (
        nullcontext()
        if made is None
        else _kept([(linear.held, one) for linear, one in zip(linears, made, strict=True)])
    )


@contextmanager
def _kept(values: list[tuple[HeldValues, Tensor]]) -> Iterator[None]:
    until_here = [held for held, _ in values if not held.holds]
    for held, value in values:
        held.keep("values", value)
    try:
        yield
    finally:
        for held in until_here:
            held.release()
