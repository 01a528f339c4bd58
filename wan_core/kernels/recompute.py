"""Recomputes activations that are cheap to compute: normed inputs of linears, and the GELU.

A LoRA linear keeps its input for the backward pass. Where that input is one elementwise step away from a tensor that
is kept anyway, the step is recomputed instead. This saves 7 of the 24 kept tensors of a block, for 2 % of its time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd.graph import disable_saved_tensors_hooks, saved_tensors_hooks

from ..accelerator import DEVICE_TYPES

R = TypeVar("R")


_WITH_AUTOCAST = frozenset(kind for kind in DEVICE_TYPES if torch.amp.is_autocast_available(kind))
"""device types with autocast; read once, because torch.compile up to 2.10 breaks its graph at the call"""


def without_autocast(device_type: str, function: Callable[..., R], *inputs: Any) -> R:
    """Returns `function(*inputs)`, computed with autocast of this device type switched off.

    A function and no context manager, so that torch.compile sees one plain branch on the ambient state.
    """
    has_autocast = device_type in _WITH_AUTOCAST or torch.amp.is_autocast_available(device_type)
    if has_autocast and torch.is_autocast_enabled(device_type):
        with torch.autocast(device_type, enabled=False):
            return function(*inputs)
    return function(*inputs)


def remade(made: Tensor, make: Callable[[], Tensor]) -> AbstractContextManager[None]:
    """Inside, autograd does not keep `made` (any shape); the backward pass calls `make()`, which returns the same bits.

    `make` must refer only to tensors that the graph keeps anyway. Contexts nest. Does nothing inside activation
    checkpointing or other saved-tensor hooks (torch applies only the innermost pair), under torch.compile, and without
    gradients.
    """
    if torch.compiler.is_compiling() or not torch.is_grad_enabled() or _active.keeps:
        return _NOTHING
    if _active.recipes:
        return _Open(_Recipe(made, make))
    return _NOTHING if _others_decide() else _Hooked(_Recipe(made, make))


@contextmanager
def made_once() -> Iterator[None]:
    """Inside, `remade` does nothing, and autograd keeps all activations.

    For the recompute of few tokens, or of one chunk of several, whose activations are few.
    """
    before, _active.keeps = _active.keeps, True
    try:
        yield
    finally:
        _active.keeps = before


class _Active(threading.local):
    def __init__(self) -> None:
        self.recipes: list[_Recipe] = []
        self.keeps = False


_active = _Active()
_NOTHING = nullcontext()
_top_hooks: Callable[[bool], object] | None = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)  # pyright: ignore


class _Unsaved:
    """Stands in for the `ctx` of an autograd function without a backward pass."""

    def save_for_backward(self, *_: object) -> None: ...

    def set_materialize_grads(self, _: bool) -> None: ...


def applied(function: type[torch.autograd.Function], *inputs: Any) -> Any:
    """Returns `function.apply(*inputs)`; without gradients only its `forward`, in a third of the host's time."""
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        return function.apply(*inputs)
    return function.forward(_Unsaved(), *inputs)


def _others_decide() -> bool:
    """Returns whether saved-tensor hooks are active.

    Older versions of torch have no function for that, but `disable_saved_tensors_hooks` raises while hooks are active.
    """
    if _top_hooks is not None:
        return _top_hooks(False) is not None
    try:
        with disable_saved_tensors_hooks("only a check"):
            return False
    except RuntimeError:
        return True


def storage_number(tensor: Tensor) -> int:
    """Returns a number that identifies a storage; meta and fake tensors have one too, though no address."""
    return tensor.untyped_storage()._cdata  # pyright: ignore[reportPrivateUsage]


# Classes are faster than generator contexts, and a block enters some ten of them for each chunk.
class _Open(AbstractContextManager[None]):
    def __init__(self, recipe: _Recipe) -> None:
        self._recipe = recipe

    def __enter__(self) -> None:
        _active.recipes.append(self._recipe)

    def __exit__(self, *_: object) -> None:
        _active.recipes.pop()


class _Hooked(_Open):
    def __enter__(self) -> None:
        super().__enter__()
        self._hooks = saved_tensors_hooks(_pack, _unpack)
        self._hooks.__enter__()

    def __exit__(self, *_: object) -> None:
        self._hooks.__exit__(None, None, None)
        super().__exit__()


def _pack(saved: Tensor) -> Tensor | tuple[_Recipe, torch.Size]:
    for recipe in reversed(_active.recipes):
        if recipe.makes(saved):
            return recipe.used(saved.shape)
    return saved


class _Recipe:
    """Recomputes one activation. Its uses in the backward pass (q, k and v) share one result."""

    def __init__(self, made: Tensor, make: Callable[[], Tensor]) -> None:
        # The tensor itself is not kept, because it must be freed. Its storage number is unique inside the context.
        self._storage, self._numel = storage_number(made), made.numel()
        self._device, self._make = made.device.type, make
        self._uses = self._left = 0
        self._result: Tensor | None = None

    def makes(self, saved: Tensor) -> bool:
        return saved.numel() == self._numel and saved.is_contiguous() and storage_number(saved) == self._storage

    def used(self, shape: torch.Size) -> tuple[_Recipe, torch.Size]:
        self._uses += 1
        self._left += 1
        return self, shape

    def unpack(self, shape: torch.Size) -> Tensor:
        if self._result is None:
            # The dtypes must be those of the forward pass, also in a backward pass inside autocast.
            with torch.no_grad():
                self._result = without_autocast(self._device, self._make)
        result = self._result.view(shape)
        self._left -= 1
        if self._left == 0:  # reset, for another backward pass through a retained graph
            self._result, self._left = None, self._uses
        return result


def _unpack(kept: Tensor | tuple[_Recipe, torch.Size]) -> Tensor:
    return kept if isinstance(kept, Tensor) else kept[0].unpack(kept[1])
