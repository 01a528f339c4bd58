"""Fused functions in use without a trial."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch

from wan_core.kernels import Fused
from wan_core.model import WanTransformer
from wan_core.precision.first_run import trials


def all_of(model: WanTransformer) -> list[tuple[Fused, str]]:
    """Returns each fused function of a step of `model`, with its kind."""
    found = [(trial.function, trial.kind) for trial in trials(model, torch.device("meta"), runs=True)]
    return list(dict.fromkeys(found))


@contextmanager
def used_on(device: torch.device, functions: Iterable[tuple[Fused, str]]) -> Iterator[None]:
    """Inside, these (function, kind) are used on a device."""
    chosen = list(functions)
    for function, kind in chosen:
        function.use(device, kind)
    try:
        yield
    finally:
        for function, _ in chosen:
            function.set_aside(device)
