"""Calls of a compiled function without torch's way to it: what a graph was given once, it is given directly next time.

A call of a compiled function costs the host some 25 microseconds (100 between other calls, from a cold cache): guards
of each graph are asked, and inputs unpacked. For the exact shapes, strides, dtypes and numbers of an earlier call their
answer is known, and the graph is called for 10.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

_MOST = 4096
"""calls of one function that are known at once, each some hundred bytes"""
_PLAIN = (Tensor, nn.Parameter)
Key: TypeAlias = "tuple[Any, ...]"
"""what a compiled function may look at: of a tensor shape, strides, dtype, device; any other input itself"""


class _Seen(NamedTuple):
    """One run of a compiled graph."""

    graph: Callable[..., Any]
    inputs: tuple[Any, ...]
    outputs: Any


class _Watching(threading.local):
    """The runs of graphs in this thread, while somebody wants to know them."""

    seen: list[_Seen] | None = None


class _Call(NamedTuple):
    """A graph, and how its inputs and outputs are those of the function for one key."""

    graph: Callable[..., Any]
    given: tuple[tuple[int, Any], ...]
    """for each input of the graph: the index among those of the function, or -1 and the number that it is"""
    results: tuple[int, ...] | int | None
    """indexes among the outputs of the graph, or one, or nothing"""


_watching = _Watching()


def backend(options: dict[str, Any]) -> Callable[..., Any]:
    """Returns a backend of torch.compile: inductor with these options, whose graphs `Direct` can call."""

    def compile_graph(module: Any, examples: Sequence[Any]) -> Callable[..., Any]:
        from torch._inductor.compile_fx import compile_fx

        graph: Any = compile_fx(module, examples, config_patches=options)  # pyright: ignore
        # Without torch's mark that no compiler may look inside, which costs as much as a small kernel.
        graph = getattr(graph, "_torchdynamo_orig_callable", graph)

        def run(*inputs: Any) -> Any:
            outputs = graph(*inputs)
            if _watching.seen is not None:
                _watching.seen.append(_Seen(graph, inputs, outputs))
            return outputs

        return run

    return compile_graph


def key_of(inputs: Sequence[Any]) -> Key | None:
    """Returns the key of a call; None where it is not one to be made directly, as under a mode that wants to see it."""
    # A mode counts operators, a profiler names them.
    if torch._C._len_torch_dispatch_stack() or torch.autograd.profiler._is_profiler_enabled:  # pyright: ignore
        return None
    key: list[Any] = []
    for one in inputs:
        if type(one) in _PLAIN:
            key += (one.shape, one.stride(), one.dtype, one.device)
        elif isinstance(one, Tensor):  # a subclass acts for itself
            return None
        else:
            key.append(one)
    return tuple(key)


class Direct:
    """The calls of one compiled function that are known."""

    def __init__(self) -> None:
        self._calls: dict[Key, _Call] = {}

    def call(self, key: Key, inputs: Sequence[Any]) -> tuple[Any] | None:
        """Returns what the function returns for `inputs` of that key, as the only value of a tuple; None: unknown."""
        known = self._calls.get(key)
        if known is None:
            return None
        graph, given, results = known
        given_now = [number if index < 0 else inputs[index] for index, number in given]
        if torch.is_grad_enabled():
            with torch.no_grad():
                outputs = graph(*given_now)
        else:
            outputs = graph(*given_now)
        if results is None:
            return (None,)
        return (outputs[results] if isinstance(results, int) else tuple([outputs[i] for i in results]),)

    def learn(self, function: Callable[..., Any], key: Key | None, inputs: Sequence[Any]) -> Any:
        """Returns `function(*inputs)`, compiled with `backend`, and remembers for `key` which graph it ran, and how."""
        if key is None:
            return function(*inputs)
        before, _watching.seen = _watching.seen, []
        try:
            found, seen = function(*inputs), _watching.seen
        finally:
            _watching.seen = before
        call = _as_call(inputs, found, seen[0]) if len(seen) == 1 else None
        if call is not None:
            if len(self._calls) >= _MOST:
                self._calls.clear()
            self._calls[key] = call
        return found

    def forget(self) -> None:
        """Forgets every call."""
        self._calls.clear()


def _as_call(inputs: Sequence[Any], found: Any, seen: _Seen) -> _Call | None:
    """Returns how `seen` made `found` of `inputs`; None where that is more than handing tensors on."""
    places = {id(one): index for index, one in enumerate(inputs) if isinstance(one, Tensor)}
    given: list[tuple[int, Any]] = []
    for one in seen.inputs:
        if isinstance(one, Tensor):
            if id(one) not in places:
                return None
            given.append((places[id(one)], None))
        elif type(one) is int:
            given.append((-1, one))
        else:
            return None
    if found is None:
        return _Call(seen.graph, tuple(given), None)
    made = {id(one): index for index, one in enumerate(seen.outputs)}
    results = [made.get(id(one)) for one in ((found,) if isinstance(found, Tensor) else found)]
    indexes = tuple(index for index in results if index is not None)
    if len(indexes) < len(results):
        return None
    return _Call(seen.graph, tuple(given), indexes[0] if isinstance(found, Tensor) else indexes)
