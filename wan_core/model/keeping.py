"""Selective checkpointing: the forward pass keeps some results, so that the backward pass need not recompute them.

A policy names activations (`names.ACTIVATIONS`). For a named activation, the results of its matrix products and of its
attention are kept; xq_out and xk_out have neither, so all their results are kept. Views and casts are never kept.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from .compiled import PlainMode
from .names import UNREAD, current_name, listening
from .offload import Offload

EVERY_MATMUL = "matmul"
"""in a policy: the result of every linear; attention's own matrix products do not count"""
_MATMULS = frozenset({"aten::mm", "aten::addmm"})
_ATTENTION = "scaled_dot_product"
_ELEMENTWISE = frozenset({"xq_out", "xk_out"})
_ATTENTIONS_WITH_A_CHOICE = ("_efficient_attention", "_cudnn_attention")
"""return the log-sum-exp, which the backward pass needs, only if argument number `_LOG_SUM_EXP` is True"""
_LOG_SUM_EXP = 4
"""from 0"""


@dataclass(frozen=True)
class Policy:
    """The activations that a checkpointed block keeps for the backward pass; the empty policy keeps none."""

    saved: frozenset[str] = frozenset()
    """names in ACTIVATIONS, or EVERY_MATMUL: kept on the block's device"""
    offloaded: frozenset[str] = frozenset()
    """the same names: kept in host memory"""

    def __bool__(self) -> bool:
        return bool(self.saved or self.offloaded)

    @property
    def names(self) -> frozenset[str]:
        """Names of all kept activations."""
        return self.saved | self.offloaded

    def place_of(self, name: str | None, operator: Any) -> str:
        """Returns "saved", "offloaded", or "" (not kept) for a result of `operator` inside the activation `name`."""
        if name == UNREAD:
            return ""
        kind = operator._schema.name
        matmul, attention = kind in _MATMULS, _ATTENTION in kind and "backward" not in kind
        computes = matmul or attention or (name in _ELEMENTWISE and not operator.is_view and kind != "aten::detach")
        names = {name} if computes else set()
        if matmul:
            names.add(EVERY_MATMUL)
        return "saved" if names & self.saved else "offloaded" if names & self.offloaded else ""


POLICIES = {
    "full": Policy(),
    "attn_output": Policy(saved=frozenset({"attn_output"})),
    "matmul_without_batch": Policy(saved=frozenset({EVERY_MATMUL})),
    "offload_matmul_without_batch": Policy(offloaded=frozenset({EVERY_MATMUL})),
}
"""by the name in the setting; all but attn_output are MaxDiffusion's remat policies"""


class _Call(NamedTuple):
    """Identifies a call of an operator; equal in the forward pass and the recomputation."""

    operator: Any
    shapes: tuple[Any, ...]


class Kept:
    """The kept activations of one pass through one layer, by chunk, in the order of the calls."""

    def __init__(self, policy: Policy, offload: Offload) -> None:
        self._policy, self._offload = policy, offload
        self._results: defaultdict[int, defaultdict[_Call, deque[Any]]] = defaultdict(lambda: defaultdict(deque))
        self._away: list[tuple[list[Any], int, Callable[[], Tensor]]] = []

    @contextmanager
    def seen(self, part: int, *, again: bool) -> Iterator[None]:
        """Inside, the policy's results of chunk `part` are kept; with `again`, operators return them instead of
        computing, each result once."""
        mode = _Mode(self, part, again=again)
        # A dispatch mode costs some microseconds per operator, so it is active only around the named activations.
        if EVERY_MATMUL in self._policy.names:
            with listening(), mode:
                yield
        else:
            with listening(mode, self._policy.names):
                yield

    def fetch(self) -> None:
        """Loads offloaded results, in reverse order; call it before recomputing."""
        while self._away:
            values, index, take = self._away.pop()
            values[index] = take()

    def keep(self, part: int, call: _Call, place: str, result: Any) -> None:
        values, spec = tree_flatten(result)
        values = [value.detach() if isinstance(value, Tensor) else value for value in values]
        self._results[part][call].append((values, spec))
        if place == "offloaded":
            for index, value in enumerate(values):
                if isinstance(value, Tensor) and (take := self._offload.put(value)) is not None:
                    values[index] = None
                    self._away.append((values, index, take))

    def take(self, part: int, call: _Call) -> Any:
        """Returns the kept result of `call`, or `_NOTHING`."""
        found = self._results[part].get(call)
        if not found:
            return _NOTHING
        values, spec = found.popleft()
        return tree_unflatten(values, spec)

    def place_of(self, operator: Any) -> str:
        return self._policy.place_of(current_name(), operator)


_NOTHING = object()


def _call(operator: Any, args: Any) -> _Call:
    return _Call(operator, tuple(tuple(x.shape) if isinstance(x, Tensor) else None for x in tree_leaves(args)))


class _Mode(PlainMode):
    def __init__(self, kept: Kept, part: int, *, again: bool) -> None:
        super().__init__()
        self._kept, self._part, self._again = kept, part, again

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        place = self._kept.place_of(func)
        if place and self._again:
            found = self._kept.take(self._part, _call(func, args))
            if found is not _NOTHING:
                return found
        if not place or self._again:
            return func(*args, **(kwargs or {}))
        if func._schema.name.endswith(_ATTENTIONS_WITH_A_CHOICE) and len(args) > _LOG_SUM_EXP:
            args = (*args[:_LOG_SUM_EXP], True, *args[_LOG_SUM_EXP + 1 :])
        result = func(*args, **(kwargs or {}))
        self._kept.keep(self._part, _call(func, args), place, result)
        return result
