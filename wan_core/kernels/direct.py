"""Calls the compiled graph of a function directly for inputs seen before, without torch's guards.

A call of a compiled function costs the host some 25 microseconds (100 from a cold cache) for guards and unpacking of
inputs. With the exact shapes, strides, dtypes and numbers of an earlier call, their result is known, and a direct call
takes 10.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

_MOST = 4096
"""most cached calls of one function, some hundred bytes each"""
_PLAIN = (Tensor, nn.Parameter)
Key: TypeAlias = "tuple[Any, ...]"
"""the inputs that guards can depend on: shape, strides, dtype and device of a tensor; any other input itself"""


_Seen: TypeAlias = "tuple[Callable[..., Any], tuple[Any, ...], Any]"
"""a run of a compiled graph: graph, inputs, outputs"""
_Call: TypeAlias = "tuple[Callable[..., Any], tuple[tuple[int, Any], ...], tuple[int, ...] | int | None]"
"""a compiled graph; for each of its inputs the index of the function's input, or -1 and a constant; for the function's
result: indexes of outputs of the graph, one index, or None"""


class _Recording(threading.local):
    seen: list[_Seen] | None = None
    """the runs of graphs in this thread, while they are recorded"""


_recording = _Recording()


def backend(options: dict[str, Any]) -> Callable[..., Any]:
    """Returns a backend of torch.compile: inductor with `options`, with graphs that `Direct` can call."""

    def compile_graph(module: Any, examples: Sequence[Any]) -> Callable[..., Any]:
        from torch._inductor.compile_fx import compile_fx

        graph: Any = compile_fx(module, examples, config_patches=options)  # pyright: ignore
        # Skips torch's wrapper that disables further compilation, which costs as much time as a small kernel.
        graph = getattr(graph, "_torchdynamo_orig_callable", graph)

        def run(*inputs: Any) -> Any:
            outputs = graph(*inputs)
            if _recording.seen is not None:
                _recording.seen.append((graph, inputs, outputs))
            return outputs

        return run

    return compile_graph


def key_of(inputs: Sequence[Any]) -> Key | None:
    """Returns the key of a call; None if no direct call is possible."""
    # A dispatch mode or a profiler must see the operator.
    if torch._C._len_torch_dispatch_stack() or torch.autograd.profiler._is_profiler_enabled:  # pyright: ignore
        return None
    key: list[Any] = []
    for one in inputs:
        if type(one) in _PLAIN:
            key += (one.shape, one.stride(), one.dtype, one.device)
        elif isinstance(one, Tensor):  # subclasses have their own dispatch
            return None
        else:
            key.append(one)
    return tuple(key)


class Direct:
    """The cached calls of one compiled function."""

    def __init__(self) -> None:
        self._calls: dict[Key, _Call] = {}

    def call(self, key: Key, inputs: Sequence[Any]) -> tuple[Any] | None:
        """Returns a tuple with the function's result for `inputs` of this key; None for an unknown key."""
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
        """Returns `function(*inputs)`, compiled with `backend`, and caches its graph call under `key`, unless None."""
        if key is None:
            return function(*inputs)
        before, _recording.seen = _recording.seen, []
        try:
            found, seen = function(*inputs), _recording.seen
        finally:
            _recording.seen = before
        call = _as_call(inputs, found, seen[0]) if len(seen) == 1 else None
        if call is not None:
            if len(self._calls) >= _MOST:
                self._calls.clear()
            self._calls[key] = call
        return found

    def forget(self) -> None:
        """Clear the cache."""
        self._calls.clear()


def _as_call(inputs: Sequence[Any], found: Any, seen: _Seen) -> _Call | None:
    """Returns the graph call that computed `found` from `inputs`; None unless it only passes tensors on."""
    graph, graph_inputs, outputs = seen
    places = {id(one): index for index, one in enumerate(inputs) if isinstance(one, Tensor)}
    given: list[tuple[int, Any]] = []
    for one in graph_inputs:
        if isinstance(one, Tensor) and id(one) in places:
            given.append((places[id(one)], None))
        elif type(one) is int:
            given.append((-1, one))
        else:
            return None
    if found is None:
        return graph, tuple(given), None
    made = {id(one): index for index, one in enumerate(outputs)}
    results = [made.get(id(one)) for one in ((found,) if isinstance(found, Tensor) else found)]
    indexes = tuple(index for index in results if index is not None)
    if len(indexes) < len(results):
        return None
    return graph, tuple(given), indexes[0] if isinstance(found, Tensor) else indexes
