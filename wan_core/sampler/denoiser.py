"""Assigns sampling steps to models: to a single model, or to the experts of a pair."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from torch import Tensor

from ..errors import ConfigError
from ..model import WanTransformer


@dataclass(frozen=True)
class Denoiser:
    """A model, and the sigmas at which its steps start: sigma_min <= sigma < sigma_max; with sigma_max 1 also sigma 1.

    `opened` is entered before the first step and left after the last, so a pair needs device memory for one expert.
    """

    opened: Callable[[], AbstractContextManager[WanTransformer]]
    sigma_min: float = 0.0
    sigma_max: float = 1.0
    """sampling starts at this sigma of the first denoiser"""


def turns(denoisers: Sequence[Denoiser], sigmas: Tensor) -> list[tuple[Denoiser, Tensor]]:
    """Returns each denoiser with its sigmas, (own steps + 1,) float32, highest first.

    `denoisers`: the highest range first; `sigmas` (steps + 1,): from 1 to 0. The last sigma of a denoiser is the first
    sigma of the next, as with two KSamplerAdvanced nodes. Denoisers without a step are omitted; ConfigError if none has
    a step.
    """
    found: list[tuple[Denoiser, Tensor]] = []
    starts, highest = sigmas[:-1], denoisers[0].sigma_max
    begin = int((starts >= highest).sum()) if highest < 1 else 0
    for denoiser in denoisers:
        # A step at the boundary belongs to the high_noise expert, as in ComfyUI and the official code.
        end = int((starts >= denoiser.sigma_min).sum())
        if end > begin:
            found.append((denoiser, sigmas[begin : end + 1].clone()))
            begin = end
    if not found:
        raise ConfigError(
            f"None of {len(starts)} sampling steps begins at a noise level of {denoisers[-1].sigma_min:g} to "
            f"{highest:g}. Set more steps, or another shift."
        )
    # Where the high_noise expert samples alone, its last step ends at sigma 0, which gives its expected clean clip.
    found[-1][1][-1] = 0.0
    return found
