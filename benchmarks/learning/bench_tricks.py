"""Changes of a training that the engine has no setting for, around `Study._trained`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from wan_core.flow import draw_noise, seeded_generator
from wan_core.model import Passage
from wan_core.train.draws import Draw, Draws
from wan_core.train.objective import NoisedBatch, Objective, true_velocity

_at, _predicted = Draws.at, Objective._predicted


@contextlib.contextmanager
def tricks(
    empty_text: Tensor,
    *,
    draws: int = 1,
    antithetic: bool = False,
    immiscible: int = 1,
    contrastive: float = 0.0,
    guidance: float = 0.0,
) -> Iterator[None]:
    """Inside, trainings use these.

    `draws`: noises and noise levels of each clip in a pass. `antithetic`: every second noise is the one before it times
    -1. `immiscible`: each clip takes the nearest of this many noises. `contrastive`: weight of the error from the other
    clip's velocity, which is to be large (batch 2). `guidance`: how far the target goes on from the prediction for
    `empty_text` (M, D) to the one for the caption.
    """

    def at(self: Draws, micro_step: int) -> Draw:
        draw = _several(self, micro_step, draws) if draws > 1 else _at(self, micro_step)
        noise = _nearest(self, micro_step, draw, immiscible) if immiscible > 1 else draw.noise
        return replace(draw, noise=_antithetic(self, micro_step, noise) if antithetic else noise)

    last: dict[str, Any] = {}

    def predicted(self: Objective, batch: NoisedBatch, passages: tuple[Passage, ...] = ()) -> Tensor:
        last["model"], last["velocity"] = self._model, _predicted(self, batch, passages)
        return last["velocity"]

    def target(batch: NoisedBatch) -> Tensor:
        true = true_velocity(batch)
        if not torch.is_grad_enabled():  # an evaluation
            return true
        if contrastive:  # |v - a|^2 - c |v - b|^2 has its least where (1 - c) v = a - c b
            true = (true - contrastive * true.roll(1, 0)) / (1 - contrastive)
        if guidance:
            with torch.no_grad():
                text = empty_text.expand(len(true), -1, -1)
                without = last["model"](batch.noised, batch.timestep, text)
            true = true + guidance * (last["velocity"].detach() - without)
        return true

    with (
        mock.patch.object(Draws, "at", at),
        mock.patch.object(Objective, "_predicted", predicted),
        mock.patch("learning.study.true_velocity", target),
    ):
        yield


def _noise(draws: Draws, name: object, shape: tuple[int, ...], place: int) -> Tensor:
    return draw_noise(shape, seeded_generator(draws._config.seed, name, place))


def _several(draws: Draws, micro_step: int, count: int) -> Draw:
    """A draw of one clip, `count` times with other noises and levels."""
    draw, place = _at(draws, micro_step), draws.place(micro_step)
    batch = draw.batch
    batch = replace(batch, latents=batch.latents.repeat_interleave(count, 0), texts=batch.texts.expand(count, -1, -1))
    sigma = draws._levels.at(place * count, batch.latents)
    return Draw(batch, _noise(draws, "noise", batch.latents.shape, place), sigma, None)


def _antithetic(draws: Draws, micro_step: int, noise: Tensor) -> Tensor:
    if len(noise) > 1:
        signs = torch.tensor([1.0, -1.0]).repeat(len(noise) // 2).view(-1, 1, 1, 1, 1)
        return signs * noise[::2].repeat_interleave(2, 0)
    place = draws.place(micro_step)
    return -_noise(draws, "noise", noise.shape, place - 1) if place % 2 else noise


def _nearest(draws: Draws, micro_step: int, draw: Draw, count: int) -> Tensor:
    latents, place = draw.batch.latents, draws.place(micro_step)
    noises = torch.stack([_noise(draws, ("immiscible", n), latents.shape, place) for n in range(count)])
    nearest = (noises * latents).flatten(2).sum(-1).argmax(0)
    return noises[nearest, torch.arange(len(latents))]
