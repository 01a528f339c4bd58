"""Caches the modules below a layer, because a step looks them up some hundred times for each block."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

_KEPT = "_walked"
_times_changed = 0


def modules_changed() -> None:
    """Invalidate the cache; called after modules were added to a model or removed from it.

    A stale cache costs time, but changes no values.
    """
    global _times_changed
    _times_changed += 1


def having(layer: nn.Module, attribute: str) -> tuple[tuple[Any, Any], ...]:
    """Returns (module, value) of `layer` and all modules below it whose `attribute` is not None.

    Values below `layer` are cached, so these attributes must not be replaced.
    """
    _, below, found = _walked(layer)
    if attribute not in found:
        values = ((module, getattr(module, attribute, None)) for module in below)
        found[attribute] = tuple((module, value) for module, value in values if value is not None)
    own = getattr(layer, attribute, None)
    return found[attribute] if own is None else ((layer, own), *found[attribute])


def parameters_below(layer: nn.Module) -> Iterator[nn.Parameter]:
    """Yields `layer.parameters()`, with a parameter of several modules several times."""
    for module in (layer, *_walked(layer)[1]):
        for p in module._parameters.values():  # pyright: ignore[reportPrivateUsage]
            if p is not None:
                yield p


def _walked(layer: nn.Module) -> tuple[int, tuple[nn.Module, ...], dict[str, Any]]:
    """Returns the change count when `layer` was searched, the modules below it, and cached attributes.

    `layer` itself is not included, because the reference cycle would delay its release until garbage collection.
    """
    known = vars(layer).get(_KEPT)
    if known is None or known[0] != _times_changed:
        known = vars(layer)[_KEPT] = (_times_changed, tuple(layer.modules())[1:], {})
    return known
