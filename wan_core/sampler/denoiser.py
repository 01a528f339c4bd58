"""Chooses the model for a noise level: one for all of them, or the two experts of a pair in turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from torch import Tensor

from ..errors import ConfigError
from ..model import WanTransformer


@dataclass(frozen=True)
class Denoiser:
    """One model, and the noise levels that are its own.

    `opened` is entered right before its first step and left right after its last one, so that of two models that do
    not fit together each may be brought in for its own steps only.
    """

    opened: Callable[[], AbstractContextManager[WanTransformer]]
    sigma_min: float = 0.0
    """true t: it takes the steps that begin at this noise level or above it"""
    sigma_max: float = 1.0
    """true t: and below this one, where that is not the top; of the first denoiser it says where sampling begins"""
    guidance_scale: float | None = None
    """None: that of the preset"""

    @classmethod
    def of(cls, model: WanTransformer, **more: float | None) -> Denoiser:
        """Returns the denoiser of a model that is where it has to be."""
        return cls(lambda: nullcontext(model), **more)  # type: ignore[arg-type]


def turns(denoisers: Sequence[Denoiser], sigmas: Tensor) -> list[tuple[Denoiser, Tensor]]:
    """Returns each denoiser with the noise levels it walks through, (own steps + 1,) float32, noisiest first.

    `denoisers` come noisiest first; `sigmas` (steps + 1,) falls from 1 to 0. The last level of one is the first of the
    next, as with two KSamplerAdvanced. Whoever has no step is left out. Where nobody takes the low noise levels (the
    high noise expert alone), the last step goes to 0 at once: it shows what that model expects to come out. Where
    nobody takes the high ones (the low noise expert alone), the levels begin further down.
    Raises ConfigError when no step is left at all.
    """
    found: list[tuple[Denoiser, Tensor]] = []
    starts, highest = sigmas[:-1], denoisers[0].sigma_max
    begin = int((starts >= highest).sum()) if highest < 1 else 0
    for denoiser in denoisers:
        # ComfyUI and official Wan: the border itself belongs to the expert above it.
        end = int((starts >= denoiser.sigma_min).sum())
        if end > begin:
            found.append((denoiser, sigmas[begin : end + 1].clone()))
            begin = end
    if not found:
        raise ConfigError(
            f"None of {len(starts)} sampling steps begins at a noise level of {denoisers[-1].sigma_min:g} to "
            f"{highest:g}. Set more steps, or another shift."
        )
    found[-1][1][-1] = 0.0
    return found
