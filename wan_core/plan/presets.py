"""Presets of Train Wan LoRA: clip size, block swap and steps, planned for a model and a card with so much memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..checkpoint import WanVariant
from ..config import nearest
from ..errors import ConfigError, OutOfMemory
from ..placement import StepShape, card_bytes
from ..train import TrainConfig
from .cards import Card, card_of_size, slowest_of
from .here import plan_here
from .modes import plan_on_cards
from .planning import MemoryPlan
from .workload import Workload

_CLIPS = ((1.0, 49), (1.0, 33), (0.75, 33), (0.6, 33))
"""(scale of width and height, frames) to try, the largest clips first"""
_PIXELS = {8: 832 * 480, 16: 1280 * 704}
"""spatial stride of the VAE -> pixels of a frame at scale 1, a size that such models are made for"""
_SMALLEST = 0.9
"""least memory of a card as a share of the preset's GiB: cards of 16 GB are sold with 14.7 to 16 GiB"""


@dataclass(frozen=True)
class Preset:
    """The length of a run and the largest clips it may train, on a card of this number of GiB."""

    gibibytes: int
    steps: int
    """optimizer steps of each trained model"""
    hours: float
    """longest predicted run; smaller clips are chosen to keep it"""
    most_frames: int


_LOOKS = {"quick look": (400, 1.5, 33), "good": (1500, 16.0, 49)}
PRESETS = {
    f"{gib} GB, {look}": Preset(gib, *values) for gib in (8, 12, 16, 24, 32, 48, 80) for look, values in _LOOKS.items()
}
"""presets by their names in the widget"""


def plan_preset(
    name: str, job: Workload, host_freed: int = 0, cards: Sequence[float] = (), mode: str = ""
) -> MemoryPlan:
    """Returns the plan of a preset on this machine, or on `cards` of these GiB in `mode`.

    `host_freed`: bytes of host memory of this machine that are freed before the job starts. Raises ConfigError for an
    unknown name, without a GPU and for smaller cards, OutOfMemory if the preset's smallest clips do not fit.
    """
    if (preset := PRESETS.get(name)) is None:
        hint = nearest(name, [*PRESETS])
        raise ConfigError('{name} "{value}" is not a choice.{nearest}', name="preset", value=name[:200], nearest=hint)

    def plan_of(one: Workload) -> MemoryPlan | None:
        if cards:
            return plan_on_cards(one, [min(card, preset.gibibytes) for card in cards], mode)
        return plan_here(one, host_freed, preset.gibibytes)

    card = slowest_of(cards) if cards else None
    if (plan := fit_preset(preset, job, plan_of, card)) is None:
        raise ConfigError(
            "A preset is planned for a GPU, and this machine has none. Set frames, size and steps yourself."
        )
    found = cards or [(card_bytes(torch.device(one)) or math.inf) / 2**30 for one in plan.estimate.devices]
    if min(found) < _SMALLEST * preset.gibibytes:
        raise ConfigError("The GPU has {gib} GiB. Choose a preset of no more than that.", gib=f"{min(found):.1f}")
    return plan


def fit_preset(
    preset: Preset, job: Workload, plan_of: Callable[[Workload], MemoryPlan | None], card: Card | None = None
) -> MemoryPlan | None:
    """Returns the plan of `job` with the preset's steps and its largest clips that fit and train within its hours.

    Where no clips are fast enough, the plan is that of the smallest clips that fit. None if `plan_of` plans nothing
    (CPU). `card`: predicts the time; None: the card of this machine. Clips keep the aspect ratio of the job's, and
    stills remain stills. Raises OutOfMemory if the smallest clips do not fit.
    """
    steps = preset.steps * (2 if job.longer_share else 1)
    train, found, plan = replace(job.train, steps=steps, blocks_to_swap=-1), None, None
    for step in _steps_of(preset, job):
        follows = job.preview is not None and replace(job.preview, batch_size=job.step.batch_size) == job.step
        preview = replace(step, batch_size=1) if follows else job.preview
        plan = plan_of(replace(job, train=train, step=step, preview=preview))
        if plan is None:
            return None
        found = plan if plan.fits else found
        if (
            plan.fits
            and plan.seconds(card or plan.card or card_of_size(preset.gibibytes)) * steps <= 3600 * preset.hours
        ):
            break
    if found is None and plan is not None:
        raise OutOfMemory(plan.verdict())
    return found


def preset_data(plan: MemoryPlan, card: Card | None) -> dict[str, Any]:
    """Returns a preset as JSON data: `settings` by widget name, predicted `seconds` of the run, name of the `card`."""
    seconds = None if card is None else run_seconds(plan.seconds(card), plan.job.train)
    return {"settings": preset_settings(plan), "seconds": seconds, "card": card and card.name}


def run_seconds(step: float | None, train: TrainConfig) -> int | None:
    """Returns the seconds of a run with steps of `step` seconds; None if the steps of an epoch are not known."""
    if step is None or train.max_train_epochs:
        return None
    return round(min(step * train.steps, 3600 * train.max_train_hours or math.inf))


def preset_settings(plan: MemoryPlan) -> dict[str, int]:
    """Returns the settings of a preset's plan by widget name."""
    job, space = plan.job, plan.job.file.variant.latents
    return {
        "width": job.step.latent_width * space.spatial_stride,
        "height": job.step.latent_height * space.spatial_stride,
        "num_frames": job.file.variant.num_frames(job.step.latent_frames),
        "steps": job.train.steps,
        "blocks_to_swap": plan.measures.blocks_to_swap or -1,
    }


def _steps_of(preset: Preset, job: Workload) -> Iterator[StepShape]:
    for scale, frames in _CLIPS:
        if frames <= preset.most_frames:
            variant = job.file.variant
            still = variant.num_frames(job.step.latent_frames) == 1
            latent_frames = variant.latent_frames(1 if still else frames)
            yield replace(_scaled(job.step, scale, variant), latent_frames=latent_frames)


def _scaled(step: StepShape, scale: float, variant: WanVariant) -> StepShape:
    """Returns `step` with the area of the model's own frames times `scale`², in multiples of the model's grid."""
    space, grid, aspect = variant.latents, variant.size_multiple, step.latent_width / step.latent_height
    height = scale * math.sqrt(_PIXELS[space.spatial_stride] / aspect)
    latents = [max(round(side / grid), 1) * grid // space.spatial_stride for side in (height, height * aspect)]
    return replace(step, latent_height=latents[0], latent_width=latents[1])
