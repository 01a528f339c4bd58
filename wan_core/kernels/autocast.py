"""Ambient autocast: kept out of our own blocks, and replayed in the recompute of blocks that are not ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from ..accelerator import DEVICE_TYPES, default_device

R = TypeVar("R")


_WITH_AUTOCAST = frozenset(kind for kind in DEVICE_TYPES if torch.amp.is_autocast_available(kind))
"""read once: torch.compile up to 2.10 breaks its graph at the call"""


def without_autocast(device_type: str, function: Callable[..., R], *inputs: Any) -> R:
    """Calls `function(*inputs)` with autocast of this device type switched off.

    Nothing is entered where it is off already.

    A function and not a context manager, so that torch.compile sees one plain branch on the ambient state.
    """
    has_autocast = device_type in _WITH_AUTOCAST or torch.amp.is_autocast_available(device_type)
    if has_autocast and torch.is_autocast_enabled(device_type):
        with torch.autocast(device_type, enabled=False):
            return function(*inputs)
    return function(*inputs)


@dataclass(frozen=True)
class AutocastState:
    """Autocast of several device types at one moment: (device type, enabled, dtype) each, and the weight cache."""

    devices: tuple[tuple[str, bool, torch.dtype], ...]
    cache_enabled: bool

    @classmethod
    def now(cls, *device_types: str) -> AutocastState:
        """The state of the CPU, of this machine's GPUs, and of `device_types`."""
        kinds = dict.fromkeys(("cpu", default_device().type, *device_types))
        known = [kind for kind in kinds if torch.amp.is_autocast_available(kind)]
        return cls(
            tuple((kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in known),
            torch.is_autocast_cache_enabled(),
        )

    @contextmanager
    def replayed(self) -> Iterator[None]:
        """Enter the same state again, whatever surrounds it."""
        with ExitStack() as stack:
            for kind, enabled, dtype in self.devices:
                again = torch.autocast(kind, dtype=dtype, enabled=enabled, cache_enabled=self.cache_enabled)
                stack.enter_context(again)
            yield


def replay_autocast(function: Callable[..., R], *device_types: str) -> Callable[..., R]:
    """`function`, bound to the autocast state of now: every later call runs under it.

    For a block that is not ours and reads ambient autocast, given to any recompute: wrap it in the forward pass, at
    each call (`recompute(replay_autocast(block), tokens)`), and the second run sees the dtypes of the first. torch's
    own checkpoint already replays the CPU and the device of its positional inputs; others do not, nor does it for
    further device types.
    """
    state = AutocastState.now(*device_types)

    def run(*inputs: Any, **named: Any) -> R:
        with state.replayed():
            return function(*inputs, **named)

    return run


def autocast_contexts(*device_types: str) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """`context_fn` of torch's non-reentrant checkpoint: nothing in the first pass, its autocast state in the second."""
    return nullcontext(), AutocastState.now(*device_types).replayed()
