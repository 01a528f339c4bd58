"""The names users know activations by, told to selective checkpointing without touching the block.

Each name covers the operators that make one activation, and is met once per block and pass. Nothing is recorded, and
a name costs one attribute read, unless a policy listens.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch.utils.checkpoint import CheckpointPolicy

__all__ = ["ACTIVATIONS", "Policy", "naming", "policy_contexts"]

ACTIVATIONS = (
    "query_proj", "key_proj", "value_proj", "xq_out", "xk_out", "attn_output", "self_attn", "cross_attn",
    "ffn_activation", "hidden_states",
)  # fmt: skip
"""In the order of the block. query_proj, key_proj, value_proj: linears of self-attention; xq_out, xk_out: queries and
keys after norm and rotation; attn_output: what attention returns; self_attn: after its output linear; cross_attn: all
of cross-attention; ffn_activation: first feed-forward linear and GELU; hidden_states: the block's output."""

Policy = Callable[[str | None, Any], "CheckpointPolicy"]
"""(name of the activation or None, operator) -> whether its result is kept or recomputed."""


class _Listening(threading.local):
    """Whether a policy listens, per thread: the backward pass of a GPU runs in a thread of its own."""

    on: bool = False
    name: str | None = None


_listening = _Listening()
_NOTHING = nullcontext()


def naming(name: str) -> AbstractContextManager[None]:
    """Inside, operators count as those that make the activation `name`."""
    # A compiled block is one operator to a policy; tracing this would only add guards.
    if torch.compiler.is_compiling() or not _listening.on:
        return _NOTHING
    return _named(name)


@contextmanager
def _named(name: str) -> Iterator[None]:
    before, _listening.name = _listening.name, name
    try:
        yield
    finally:
        _listening.name = before


@contextmanager
def _listen(inner: AbstractContextManager[Any]) -> Iterator[None]:
    before, _listening.on = _listening.on, True
    try:
        with inner:
            yield
    finally:
        _listening.on = before


def policy_contexts(
    policy: Policy,
) -> Callable[[], tuple[AbstractContextManager[None], AbstractContextManager[None]]]:
    """`context_fn` for torch's checkpoint: `policy` decides operator by operator what is kept for the backward pass."""
    from torch.utils.checkpoint import create_selective_checkpoint_contexts  # torch 2.4 lacks it

    def decide(_context: Any, operator: Any, *_inputs: Any, **_named: Any) -> CheckpointPolicy:
        return policy(_listening.name, operator)

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        first, again = create_selective_checkpoint_contexts(decide)
        return _listen(first), _listen(again)

    return contexts
