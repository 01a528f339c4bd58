"""Dequantized and converted weights that a stage computes once and holds for all chunks of tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from .walks import having


class HeldValues:
    """Values of one module, held between `hold` and `release`."""

    def __init__(self) -> None:
        self._holds = False
        self._made: dict[str, Tensor] = {}

    def of(self, name: str, make: Callable[[], Tensor]) -> Tensor:
        """Returns `make()`; between `hold` and `release`, the first result for this name."""
        if not self._holds:
            return make()
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]

    @property
    def holds(self) -> bool:
        """Whether new values are held."""
        return self._holds

    def has(self, name: str) -> bool:
        """Returns whether a value of this name is held."""
        return name in self._made

    def keep(self, name: str, value: Tensor) -> None:
        """Hold a value that was computed elsewhere, and all new values."""
        self._holds = True
        self._made[name] = value

    def hold(self) -> None:
        """Hold new values from now on."""
        self._holds = True

    def release(self) -> None:
        """Free all values."""
        self._holds = False
        self._made.clear()


@contextmanager
def values_held(modules: Iterable[nn.Module], *more: HeldValues) -> Iterator[None]:
    """Inside, every linear below `modules` with an attribute `held: HeldValues` dequantizes its weight at most once;
    `more` are held too.

    Does nothing under torch.compile, whose graphs have one opaque operator for each product.
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
    """Inside, the linears below `modules` hold their weights in `dtype`, dequantized by one kernel if possible.

    Their static method `several(linears, dtype)` returns the weights, or None if it cannot.
    """
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
