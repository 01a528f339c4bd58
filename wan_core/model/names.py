"""The names of activations, by which a checkpointing policy says what it keeps, without touching the block.

Each name covers the operators that make one activation, and is met once per chunk of a pass. Nothing is recorded, and
a name costs one attribute read, unless somebody listens.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor

ACTIVATIONS = (
    "query_proj", "key_proj", "value_proj", "xq_out", "xk_out", "attn_output", "self_attn", "cross_attn",
    "ffn_activation", "hidden_states",
)  # fmt: skip
"""In the order of the block. query_proj, key_proj, value_proj: linears of self-attention; xq_out, xk_out: queries and
keys after norm and rotation; attn_output: what attention returns; self_attn: after its output linear; cross_attn: all
of cross-attention but its keys and values; ffn_activation: first feed-forward linear and GELU; hidden_states: the
block's output, which the backward pass reads in VACE's second stream alone. Names of MaxDiffusion's remat policies;
xq_out and xk_out are in its options only."""

UNREAD = "unread"
"""in place of a name where the backward pass does not read the activation: no policy keeps it"""


class _Listening(threading.local):
    """Knows whether somebody listens, per thread: the backward pass of a GPU runs in a thread of its own."""

    on: bool = False
    name: str | None = None
    observed: frozenset[str] = frozenset()
    observer: AbstractContextManager[Any] | None = None
    """None also while it is entered: what is named inside is seen by the same"""


_listening = _Listening()
_NOTHING = nullcontext()


def naming(name: str) -> AbstractContextManager[None]:
    """Inside, operators count as producers of the activation `name`."""
    # A compiled block is one operator to a listener; tracing this would only add guards.
    if torch.compiler.is_compiling() or not _listening.on:
        return _NOTHING
    return _named(name)


def each_named(makes: Sequence[Callable[[], Tensor]], names: Sequence[str]) -> tuple[Tensor, ...]:
    """Returns what these make, each as the activation of its name; no names: of none."""
    if not _listening.on:
        return tuple([make() for make in makes])
    found: list[Tensor] = []
    for make, name in zip_longest(makes, names):
        with naming(name) if name else _NOTHING:
            found.append(make())
    return tuple(found)


def listened_to() -> bool:
    """Returns whether somebody listens, who may keep what is made."""
    return _listening.on


def current_name() -> str | None:
    """Returns the activation that the operators of this moment make, where somebody listens."""
    return _listening.name


@contextmanager
def _named(name: str) -> Iterator[None]:
    before, _listening.name = _listening.name, name
    observer = _listening.observer if name in _listening.observed else None
    try:
        if observer is None:
            yield
        else:
            _listening.observer = None
            with observer:
                yield
    finally:
        _listening.name = before
        if observer is not None:
            _listening.observer = observer


@contextmanager
def listening(
    observer: AbstractContextManager[Any] | None = None, observed: frozenset[str] = frozenset()
) -> Iterator[None]:
    """Inside, names are recorded; `observer` is entered for as long as an activation of `observed` is made."""
    before = _listening.on, _listening.observer, _listening.observed
    _listening.on, _listening.observer, _listening.observed = True, observer, observed
    try:
        yield
    finally:
        _listening.on, _listening.observer, _listening.observed = before
