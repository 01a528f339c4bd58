"""Names of activations: a block marks its operators with them, and a checkpointing policy selects by name.

Each name covers the operators that compute one activation, and is entered once per chunk. Without a listener a name
costs one attribute read.
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
keys after norm and RoPE; attn_output: result of attention; self_attn: its output linear; cross_attn: all of
cross-attention except keys and values; ffn_activation: first feed-forward linear and GELU; hidden_states: the
block's output, which only VACE's control stream reads in the backward pass. MaxDiffusion's remat policies use these
names."""

UNREAD = "unread"
"""replaces the name of an activation that the backward pass does not read; no policy keeps it"""


class _Listening(threading.local):
    """The listener's state, per thread: autograd runs a GPU's backward pass in a thread of its own."""

    on: bool = False
    name: str | None = None
    observed: frozenset[str] = frozenset()
    observer: AbstractContextManager[Any] | None = None
    """entered around activations in `observed`; None while it is entered"""


_listening = _Listening()
_NOTHING = nullcontext()


def naming(name: str) -> AbstractContextManager[None]:
    """Inside, `current_name` is `name`."""
    # Names are not set in a compiled block: a listener cannot see its operators, and the branch would add guards.
    if torch.compiler.is_compiling() or not _listening.on:
        return _NOTHING
    return _named(name)


def each_named(makes: Sequence[Callable[[], Tensor]], names: Sequence[str]) -> tuple[Tensor, ...]:
    """Calls every function inside `naming` of its name, and returns the results; `names` may be empty."""
    if not _listening.on:
        return tuple([make() for make in makes])
    found: list[Tensor] = []
    for make, name in zip_longest(makes, names):
        with naming(name) if name else _NOTHING:
            found.append(make())
    return tuple(found)


def listened_to() -> bool:
    """Returns whether `listening` is active in this thread; a listener may keep activations."""
    return _listening.on


def current_name() -> str | None:
    """Returns the name of the activation being computed, or None."""
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
    """Inside, `current_name` works, and `observer` is entered around every activation in `observed`."""
    before = _listening.on, _listening.observer, _listening.observed
    _listening.on, _listening.observer, _listening.observed = True, observer, observed
    try:
        yield
    finally:
        _listening.on, _listening.observer, _listening.observed = before
