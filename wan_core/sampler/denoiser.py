"""Selects the model for a sigma: a single model, or the experts of a pair in turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from torch import Tensor

from ..errors import ConfigError
from ..model import WanTransformer


@dataclass(frozen=True)
class Denoiser:
    """One model and its range of sigmas.

    `opened` is entered before its first step and left after its last one, so a pair needs device memory for one expert.
    """

    opened: Callable[[], AbstractContextManager[WanTransformer]]
    sigma_min: float = 0.0
    """unshifted: it takes steps that start at this sigma or above"""
    sigma_max: float = 1.0
    """unshifted: and below this one, unless it is 1; the first denoiser's is where sampling starts"""
    guidance_scale: float | None = None
    """None: the preset's"""

    @classmethod
    def of(cls, model: WanTransformer, **more: float | None) -> Denoiser:
        """Returns the denoiser of a loaded model."""
        return cls(lambda: nullcontext(model), **more)  # type: ignore[arg-type]


def turns(denoisers: Sequence[Denoiser], sigmas: Tensor) -> list[tuple[Denoiser, Tensor]]:
    """Returns each denoiser with its sigmas, (own steps + 1,) float32, highest first.

    `denoisers` come highest range first; `sigmas` (steps + 1,) falls from 1 to 0. Adjacent ranges share a sigma, as
    with two KSamplerAdvanced. Denoisers without a step are omitted; ConfigError when all are.
    """
    found: list[tuple[Denoiser, Tensor]] = []
    starts, highest = sigmas[:-1], denoisers[0].sigma_max
    begin = int((starts >= highest).sum()) if highest < 1 else 0
    for denoiser in denoisers:
        # As in ComfyUI and the official code, the boundary itself belongs to the high_noise expert.
        end = int((starts >= denoiser.sigma_min).sum())
        if end > begin:
            found.append((denoiser, sigmas[begin : end + 1].clone()))
            begin = end
    if not found:
        raise ConfigError(
            f"None of {len(starts)} sampling steps begins at a noise level of {denoisers[-1].sigma_min:g} to "
            f"{highest:g}. Set more steps, or another shift."
        )
    # For the high_noise expert alone the last step goes straight to 0: it shows that model's expected clean clip.
    found[-1][1][-1] = 0.0
    return found
