"""Activations that are cheaper to make again than to keep: normed inputs of linears, and the GELU.

A LoRA linear keeps its input for the backward pass. Where that input is one elementwise step away from a tensor that
is kept anyway, the step is repeated instead: 7 of the 24 token-stream sizes of a block, for about 2 % of its time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import disable_saved_tensors_hooks, saved_tensors_hooks

from .autocast import without_autocast


def remade(made: Tensor, make: Callable[[], Tensor]) -> AbstractContextManager[None]:
    """Inside, autograd keeps nothing of `made` (any shape): the backward pass calls `make()`, bit for bit the same.

    `make` must keep alive only what the graph keeps anyway. Contexts nest: the innermost hooks serve all of them. Does
    nothing where someone else decides what is kept: inside activation checkpointing or any other saved-tensor hooks
    (torch applies the innermost pair only), under torch.compile, and without gradients.
    """
    if torch.compiler.is_compiling() or not torch.is_grad_enabled() or _active.keeps:
        return _NOTHING
    if _active.recipes:
        return _Open(_Recipe(made, make))
    return _NOTHING if _others_decide() else _Hooked(_Recipe(made, make))


@contextmanager
def made_once() -> Iterator[None]:
    """Inside, `remade` does nothing, and autograd keeps what is made: where it exists for a moment and a part only."""
    before, _active.keeps = _active.keeps, True
    try:
        yield
    finally:
        _active.keeps = before


class _Active(threading.local):
    """The recipes of this thread whose contexts are open, the innermost last."""

    def __init__(self) -> None:
        self.recipes: list[_Recipe] = []
        self.keeps = False


_active = _Active()
_NOTHING = nullcontext()
_top_hooks: Callable[[bool], object] | None = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)  # pyright: ignore


class _Unsaved:
    """In place of the context of an autograd function that has no backward pass."""

    def save_for_backward(self, *_: object) -> None: ...

    def set_materialize_grads(self, _: bool) -> None: ...


def applied(function: type[torch.autograd.Function], *inputs: Any) -> Any:
    """Returns `function.apply(*inputs)`; where no gradient is wanted, its forward alone, in a third of the host's
    time."""
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        return function.apply(*inputs)
    return function.forward(_Unsaved(), *inputs)


def _others_decide() -> bool:
    """Returns whether saved-tensor hooks are active. torch has no question for that on every version; but it always
    refuses to forbid hooks while there are some, and changes nothing by that.
    """
    if _top_hooks is not None:
        return _top_hooks(False) is not None
    try:
        with disable_saved_tensors_hooks("asked"):
            return False
    except RuntimeError:
        return True


def storage_number(tensor: Tensor) -> int:
    """Returns a number that identifies a storage, on every device.

    Meta and fake tensors have one too, though no address.
    """
    return tensor.untyped_storage()._cdata  # pyright: ignore[reportPrivateUsage]


# Classes, and no generators: a block enters some ten of them for each chunk.
class _Open(AbstractContextManager[None]):
    """Inside, what hooks of this file see is looked up among the open recipes, this one the first."""

    def __init__(self, recipe: _Recipe) -> None:
        self._recipe = recipe

    def __enter__(self) -> None:
        _active.recipes.append(self._recipe)

    def __exit__(self, *_: object) -> None:
        _active.recipes.pop()


class _Hooked(_Open):
    """Does what `_Open` does, with the hooks."""

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
    """Makes one activation again. Its uses in the backward pass (q, k and v) share one result."""

    def __init__(self, made: Tensor, make: Callable[[], Tensor]) -> None:
        # Not the tensor: it shall be freed. The address is its own for as long as the caller's block runs.
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
            # Whatever autocast surrounds the backward pass, the dtypes are those of the first pass.
            with torch.no_grad():
                self._result = without_autocast(self._device, self._make)
        result = self._result.view(shape)
        self._left -= 1
        if self._left == 0:  # ready for another backward pass through a retained graph
            self._result, self._left = None, self._uses
        return result


def _unpack(kept: Tensor | tuple[_Recipe, torch.Size]) -> Tensor:
    return kept if isinstance(kept, Tensor) else kept[0].unpack(kept[1])
