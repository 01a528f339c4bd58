"""Sizes previews that are to be as ComfyUI's template of the model makes them: as long as fits beside training."""

from __future__ import annotations

from dataclasses import replace

from ..checkpoint import WanVariant
from ..families import FIRST_LATENT
from ..placement import Room
from ..sampler import AS_TEMPLATE, SampleConfig
from .job import Job
from .planning import plan_memory


def is_free_of_clips(variant: WanVariant, *, pictured: bool, starts_from_clip: bool = False) -> bool:
    """Returns whether previews of `variant` need not have the size of the first training clip.

    They need where they start from its frames: `pictured` says that a picture is there instead, `starts_from_clip` that
    a TI2V-5B is trained on nothing but image-to-video.
    """
    if variant.family.starts_from == FIRST_LATENT:
        return pictured or not starts_from_clip
    return pictured if variant.family.starts_from else not variant.conditioning.tensors


def sized_as_template(config: SampleConfig, variant: WanVariant) -> SampleConfig:
    """Returns the settings with the size of ComfyUI's template for what they leave open, where they ask for that."""
    if config.preview_size != AS_TEMPLATE:
        return config
    width, height, frames = variant.template.size
    return replace(
        config,
        width=config.width or width,
        height=config.height or height,
        num_frames=config.num_frames or frames,
    )


def with_fitting_preview(job: Job, room: Room) -> Job:
    """Returns the job with as many frames of its preview as fit with the measures that training takes without it.

    A preview may not slow every step down. Where not even one frame fits, it is as large as a training clip.
    """
    if job.preview is None:
        return job
    base = plan_memory(replace(job, preview=None), room)
    shape = base.job.shape()

    def fits(frames: int) -> bool:
        tried = replace(job, preview=replace(preview, latent_frames=frames))
        return not room.lacks(tried.estimate(shape, base.measures))

    preview, few, many = job.preview, 0, job.preview.latent_frames + 1
    if not base.fits or not fits(1):
        return replace(job, preview=replace(job.step, batch_size=1))
    while many - few > 1:
        middle = (few + many) // 2
        few, many = (middle, many) if fits(middle) else (few, middle)
    return replace(job, preview=replace(preview, latent_frames=few))
