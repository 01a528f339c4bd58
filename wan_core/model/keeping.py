"""Selective checkpointing: results that the first pass keeps, so that the second need not compute them again.

A policy names activations (`names.ACTIVATIONS`). Of a named activation the results of its matrix products and of its
attention are kept; of one without either (xq_out, xk_out) all that is computed. Views and casts are never kept.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from .compiled import PlainMode
from .names import UNREAD, current_name, listening
from .offload import Offload

EVERY_MATMUL = "matmul"
"""In a policy's names: every matrix product of a linear, whatever it makes. Attention is none."""
_MATMULS = frozenset({"aten::mm", "aten::addmm"})
_ATTENTION = "scaled_dot_product"
_ELEMENTWISE = frozenset({"xq_out", "xk_out"})
_ATTENTIONS_WITH_A_CHOICE = ("_efficient_attention", "_cudnn_attention")
"""without the fifth argument they do not return what the backward pass needs"""
_ASKS = 4


@dataclass(frozen=True)
class Policy:
    """Says which activations of a checkpointed block are kept for the backward pass; the empty policy keeps none."""

    saved: frozenset[str] = frozenset()
    """kept on the block's device; names of ACTIVATIONS, or EVERY_MATMUL"""
    offloaded: frozenset[str] = frozenset()
    """kept in host memory"""

    def __bool__(self) -> bool:
        return bool(self.saved or self.offloaded)

    @property
    def names(self) -> frozenset[str]:
        """All that it keeps."""
        return self.saved | self.offloaded

    def place_of(self, name: str | None, operator: Any) -> str:
        """Returns where the result of `operator` stays, made for the activation `name`: saved, offloaded, or ""."""
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
"""by the names users know them by: those of MaxDiffusion's remat policies, and the one that pays most"""


class _Call(NamedTuple):
    """One operator, by what must be equal in both passes."""

    operator: Any
    shapes: tuple[Any, ...]


class Kept:
    """The activations that one pass through one layer keeps, by chunk and in the order of its operators."""

    def __init__(self, policy: Policy, offload: Offload) -> None:
        self._policy, self._offload = policy, offload
        self._results: defaultdict[int, defaultdict[_Call, deque[Any]]] = defaultdict(lambda: defaultdict(deque))
        self._away: list[tuple[list[Any], int, Callable[[], Tensor]]] = []

    @contextmanager
    def first(self, part: int) -> Iterator[None]:
        """Inside, the named results of chunk `part` are kept."""
        with self._seen_by(_First(self, part)):
            yield

    @contextmanager
    def again(self, part: int) -> Iterator[None]:
        """Inside, they are not computed but given back, once."""
        with self._seen_by(_Again(self, part)):
            yield

    @contextmanager
    def _seen_by(self, mode: TorchDispatchMode) -> Iterator[None]:
        # A mode costs some microseconds for every operator that it sees, which are most of a step of a tiny model.
        if EVERY_MATMUL in self._policy.names:
            with listening(), mode:
                yield
        else:
            with listening(mode, self._policy.names):
                yield

    def fetch(self) -> None:
        """Brings back what was offloaded, in the reverse order; call it before the second pass."""
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
        """Returns the kept result, or NOTHING where none is."""
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


class _First(PlainMode):
    def __init__(self, kept: Kept, part: int) -> None:
        super().__init__()
        self._kept, self._part = kept, part

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        place = self._kept.place_of(func)
        if not place:
            return func(*args, **(kwargs or {}))
        if func._schema.name.endswith(_ATTENTIONS_WITH_A_CHOICE) and len(args) > _ASKS:
            args = (*args[:_ASKS], True, *args[_ASKS + 1 :])
        result = func(*args, **(kwargs or {}))
        self._kept.keep(self._part, _call(func, args), place, result)
        return result


class _Again(PlainMode):
    def __init__(self, kept: Kept, part: int) -> None:
        super().__init__()
        self._kept, self._part = kept, part

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._kept.place_of(func):
            found = self._kept.take(self._part, _call(func, args))
            if found is not _NOTHING:
                return found
        return func(*args, **(kwargs or {}))
