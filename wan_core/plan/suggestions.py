"""Finds settings with which a job that does not fit would fit. Each suggestion is planned before it is offered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from ..placement import FreeMemory, StepShape
from ..precision import QuantizeConfig
from .planning import nearest_that_fits, plan_memory
from .workload import Workload

Suggestion = dict[str, int | str]
"""settings by the names of their widgets"""
_AUTOMATIC: Suggestion = {"memory": "auto", "offload_activations": "auto", "blocks_to_swap": -1}
_CHECKPOINTED: Suggestion = {"gradient_checkpointing": True, "unchecked_blocks": 0}
"""settings that are only suggested, never chosen by the planner: recomputation costs a third of a step"""
_RANKS = (4, 8, 16, 32)
"""tried from the smallest on; the first that does not fit ends the search"""


def suggestions_for(
    job: Workload, room: FreeMemory, *, most: int = 3, enough: Callable[[], bool] = lambda: False
) -> list[Suggestion]:
    """Returns up to `most` changes, each of which makes `job` fit into `room`, the least intrusive first.

    Where no single change is enough, 8-bit weights with a smaller job are tried. `enough` is called after each trial,
    and ends the search if it returns True.
    """
    found: list[Suggestion] = []
    for trials in (_alone, _together):
        for suggestion in trials(job, room):
            if suggestion is not None and suggestion not in found:
                found.append(suggestion)
            if len(found) == most or enough():
                return found
        if found:
            break
    return found


def _alone(job: Workload, room: FreeMemory) -> Iterator[Suggestion | None]:
    """Yields each single change with which the job fits, and None for each other trial."""
    changed: Suggestion = {}
    for measures in (_AUTOMATIC, _CHECKPOINTED):
        more = {name: value for name, value in measures.items() if getattr(job.train, name) != value}
        if more:
            changed |= more
            tried = replace(job, train=replace(job.train, **changed))
            if plan_memory(tried, room).fits:
                yield changed
                break
            yield None
    quantized = _quantized(job)
    if quantized is not None:
        yield _scheme(quantized) if plan_memory(quantized, room).fits else None
    yield _nearest(job, room)
    yield _lower_rank(job, room)
    if job.preview is not None:
        without = replace(job, preview=None)
        yield {"preview_every_n_steps": 0} if plan_memory(without, room).fits else None


def _together(job: Workload, room: FreeMemory) -> Iterator[Suggestion | None]:
    quantized = _quantized(job)
    if quantized is not None:
        smaller = _nearest(quantized, room)
        yield {**_scheme(quantized), **smaller} if smaller is not None else None


def _quantized(job: Workload) -> Workload | None:
    """Returns the job with 8-bit weights; None if its weights are quantized already."""
    if job.model.quantize is not None or job.file.quantization != "none":
        return None
    vace = bool(job.file.variant.shape.vace_layers)
    return replace(job, model=job.model.with_quantize(QuantizeConfig(vace_blocks=vace)))


def _scheme(job: Workload) -> Suggestion:
    return {"scheme": job.model.quantize.scheme} if job.model.quantize is not None else {}


def _nearest(job: Workload, room: FreeMemory) -> Suggestion | None:
    """Returns the settings of `nearest_that_fits`, together with previews; None if nothing fits."""
    found = nearest_that_fits(job, room)
    if found is None:
        return None
    if job.preview is not None:
        follows = _size(job.preview) == _size(job.step)
        preview = replace(found.step, batch_size=1) if follows else job.preview
        if not plan_memory(replace(found, preview=preview), room).fits:
            return None
    settings: Suggestion = {}
    space, (frames, height, width) = job.file.variant.latents, _size(found.step)
    if frames != job.step.latent_frames:
        settings["num_frames"] = job.file.variant.num_frames(frames)
    if (height, width) != _size(job.step)[1:]:
        settings |= {"width": width * space.spatial_stride, "height": height * space.spatial_stride}
    if found.lora.rank != job.lora.rank:
        settings["rank"] = found.lora.rank
    # `_lower_rank` searches for a lower rank alone, among more ranks.
    return settings if settings.keys() - {"rank"} else None


def _lower_rank(job: Workload, room: FreeMemory) -> Suggestion | None:
    best: int | None = None
    for rank in (rank for rank in _RANKS if rank < job.lora.rank):
        if not plan_memory(replace(job, lora=replace(job.lora, rank=rank)), room).fits:
            break
        best = rank
    return {"rank": best} if best is not None else None


def _size(step: StepShape) -> tuple[int, int, int]:
    return step.latent_frames, step.latent_height, step.latent_width
