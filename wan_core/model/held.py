"""Values that are kept while a stage runs, made once for all chunks of tokens: dequantized and converted weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

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
