"""Draws the clips, captions, noise and noise levels of a micro-step: all of them a function of its number.

It needs the CPU alone and no model, so that the thread that reads ahead draws too, and the step waits for neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..cache import Batch, Batches
from ..flow import draw_noise, seeded_generator
from ..model import Passage, Route, draw_passages, lengthened
from .config import TrainConfig
from .group import Group
from .levels import Levels


@dataclass(frozen=True)
class Draw:
    """One micro-batch of this rank and its noise."""

    batch: Batch
    """with the empty prompt where a caption was dropped"""
    noise: Tensor
    """(B, C, F, H, W) float32"""
    sigma: Tensor
    """(B,)"""
    given: Tensor | None
    """(B,) bool: the first latent frame stays clean; None where that is never so"""
    passages: tuple[Passage, ...] = ()
    """which tokens go through the layers of each route"""

    @property
    def timestep(self) -> float:
        """The mean timestep of the batch, 0..1000."""
        return float(self.sigma.mean()) * 1000

    def pinned(self) -> Draw:
        """Returns the same in page-locked memory, for copies to a GPU; needs CUDA."""
        given = None if self.given is None else self.given.pin_memory()
        passages = tuple(passage._replace(kept=passage.kept.pin_memory()) for passage in self.passages)
        return Draw(self.batch.pinned(), self.noise.pin_memory(), self.sigma.pin_memory(), given, passages)


class Draws:
    """The draws of a job, by micro-step."""

    def __init__(
        self,
        batches: Batches,
        empty_text: Tensor,
        config: TrainConfig,
        group: Group,
        *,
        sigma_range: tuple[float, float],
        first_frame_share: float,
        routes: Sequence[Route] = (),
    ) -> None:
        """`routes`: those of `placed_routes`."""
        self._routes = routes
        self._batches, self._empty_text, self._config, self._group = batches, empty_text, config, group
        self._levels, self._first_frame_share = Levels(config, sigma_range), first_frame_share

    def place(self, micro_step: int) -> int:
        """The number of this rank's draw among those of all ranks."""
        return micro_step * self._group.world + self._group.rank

    def at(self, micro_step: int) -> Draw:
        """Returns what this rank trains at `micro_step` (0 = first)."""
        config, place = self._config, self.place(micro_step)
        batch = self._batches.at(micro_step)
        size = len(batch.latents)
        sigma = self._levels.drawn(place, batch.latents)
        if config.caption_dropout:
            dropped = (
                torch.rand(size, generator=seeded_generator(config.seed, "caption", place)) < config.caption_dropout
            )
            if bool(dropped.any()):
                batch = replace(batch, texts=_exchanged(batch.texts, dropped, self._empty_text))
        noise = draw_noise(batch.latents.shape, seeded_generator(config.seed, "noise", place))
        given = given_first_frames(batch.latents, self._first_frame_share, config.seed, place)
        return Draw(batch, noise, sigma, given, passages_of(batch, self._routes, config.seed, place))


def _exchanged(texts: Tensor, dropped: Tensor, empty: Tensor) -> Tensor:
    """Returns texts (B, L, D) with `empty` (M, D) where `dropped` (B,); the shorter of both is made as long."""
    rows = max(texts.shape[1], len(empty))
    return torch.where(dropped.view(-1, 1, 1), lengthened(empty[None], rows), lengthened(texts, rows))


def passages_of(batch: Batch, routes: Sequence[Route], *draw: int | str) -> tuple[Passage, ...]:
    """Returns the passages of placed routes for the draw named so; a reference image is a frame more."""
    frames, height, width = batch.latents.shape[2:]
    reference = batch.conditioning is not None and batch.conditioning.reference is not None
    generators = [seeded_generator("tread", number, *draw) for number in range(len(routes))]
    return draw_passages(routes, frames + reference, (height // 2) * (width // 2), generators)


def given_first_frames(latents: Tensor, share: float, *draw: int | str) -> Tensor | None:
    """Returns which samples (B,) of the draw named so are given their first latent frame. A still has no other one."""
    if not share or latents.shape[2] == 1:
        return None
    return torch.rand(len(latents), generator=seeded_generator("first frame", *draw)) < share
