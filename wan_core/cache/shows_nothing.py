"""Detects clips of noise or of one colour. Their loss falls too, so a lower loss does not mean a better LoRA.

The test runs on pixels before encoding: neighbouring pixels correlate in a picture and not in noise. In latents the VAE
has mixed neighbours.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..words import filled
from .cache_set import CacheSet
from .known_entries import KnownEntries
from .synthetic import synthetic_note

_LEAST_LIKENESS = 0.5
"""Clips with a lower correlation are noise. Measured: noise 0.00 to 0.01; noise enlarged twofold 0.51; films and drawn
clips, from 32 pixels on, 0.89 to 1.00."""
_LEAST_SPREAD = 2 / 255
"""a clip with a smaller standard deviation of brightness is one colour"""
_FEW = 5


def likeness_of_neighbours(pixels: Tensor) -> float:
    """Returns the absolute correlation of brightness between neighbouring pixels of a clip (F, H, W, 3): 0 for noise, 1
    for a smooth picture or one colour. A few frames are read.
    """
    luma = _brightness(pixels)
    luma = luma - luma.mean((1, 2), keepdim=True)
    found: list[float] = []
    for axis in (1, 2):
        one, next_ = luma.narrow(axis, 0, luma.shape[axis] - 1), luma.narrow(axis, 1, luma.shape[axis] - 1)
        power = float((one.square().sum() + next_.square().sum()) / 2)
        # The absolute value, because a checkerboard correlates negatively and is no noise.
        found.append(abs(float((one * next_).sum())) / power if power else 1.0)
    return sum(found) / len(found)


def shows_nothing(pixels: Tensor) -> bool:
    """Returns whether a clip (F, H, W, 3) in [0, 1] is noise or one colour."""
    if float(_brightness(pixels).std((1, 2)).max()) < _LEAST_SPREAD:
        return True
    return likeness_of_neighbours(pixels) < _LEAST_LIKENESS


def few_frames(pixels: Tensor) -> Tensor:
    """Returns a copy of a few evenly spaced frames (f, H, W, 3)."""
    places = torch.linspace(0, len(pixels) - 1, min(_FEW, len(pixels))).round().long()
    return pixels[places.to(pixels.device)]


def _brightness(pixels: Tensor) -> Tensor:
    return few_frames(pixels).float().mean(-1)


def clips_that_show_nothing(cache_set: CacheSet, entries: KnownEntries) -> tuple[str, ...]:
    """Returns the names of a set's clips, trained or held out, that are noise or one colour."""
    return tuple(item.name for item in cache_set.all_items if entries.shows_nothing(item.latent_key))


def nothing_shown_reason(cache_set: CacheSet, entries: KnownEntries) -> str:
    """Returns why no step is suggested for this set: at least half of its clips are noise or one colour; else ""."""
    if synthetic_note(cache_set):
        return "No step is suggested: the clips are random tensors, so there is nothing to learn."
    names = clips_that_show_nothing(cache_set, entries)
    if 2 * len(names) < len(cache_set.all_items) or not names:
        return ""
    return filled(
        "No step is suggested: {count} of {all} clips show only noise or one colour, such as {name}, and a lower loss "
        "on those does not mean a better LoRA. Replace those clips, and press Run again.",
        count=len(names),
        all=len(cache_set.all_items),
        name=names[0],
    )
