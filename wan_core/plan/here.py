"""Plans for the devices of this machine: of a job before it is queued, and of a run in its training process."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch

from ..cache import CacheSet
from ..errors import WanTrainerError
from ..files import Roots
from ..footprint import weights_once_loaded
from ..job.config import RunConfig
from ..job.open import OpenRun
from ..load import bytes_beside
from ..model import CHUNK_TOKENS
from ..placement import (
    FreeMemory,
    MemoryMeasures,
    Recomputing,
    SharedMemory,
    can_share,
    devices_of,
    free_memory_here,
    free_memory_of_cards,
    processes_by_free_memory,
    resolve_placement,
)
from ..sampler import SampleConfig
from ..train import Group, longer_share
from ..words import logger
from .cards import card_of
from .choices import largest, requested_measures
from .measured_ratios import Measured
from .modes import AUTO, PER_GPU, TOKENS, UNPLANNED, choose_mode, leaves_shares_open, share_tokens
from .planning import MemoryPlan, offload_alike, plan_memory, without_a_plan
from .workload import Workload, workload_of_run, workload_on_clips
from .world import with_mesh

_log = logger(__name__)


def plan_here(job: Workload, host_freed: int = 0, card_gib: float = math.inf) -> MemoryPlan | None:
    """Returns the plan of a job for the devices of this machine; None if no device has a memory limit (CPU).

    `host_freed`: bytes of host memory that this process frees before the job starts. `card_gib`: GiB of a card at most.
    Where each card trains a copy, this is the plan of the process with the least free memory. Cards that this process
    does not use count as empty, because a query would open a CUDA context on them for good. `plan.job` has the chosen
    mode and token shares, if the job leaves these open.
    """
    plan_of = partial(_plan_as_it_is, host_freed=host_freed, card_gib=card_gib)
    if job.model.placement.mode == AUTO:
        return choose_mode(job, plan_of)
    return share_tokens(job, plan_of) if leaves_shares_open(job) else plan_of(job)


def _plan_as_it_is(job: Workload, host_freed: int, card_gib: float) -> MemoryPlan | None:
    job, room = in_fullest_process(job, ask_driver=False)
    if not room.devices:
        return None
    if room.host is not None:
        room = replace(room, host=room.host + host_freed // job.model.placement.ranks)
    if card_gib < math.inf:
        (most,) = free_memory_of_cards([card_gib]).devices.values()
        room = replace(room, devices={name: min(free, most) for name, free in room.devices.items()})
    return plan_memory(with_fitting_preview(job, room) if job.preview_gives_way else job, room)


def with_mode(config: RunConfig, roots: Roots, clips: CacheSet) -> RunConfig:
    """Returns the job of a new run with the choices for this machine in place of `auto`, for as many clips a step.

    Choices are the mode, `context_parallel` and `token_shares`; a job without `auto` is returned as it is. For both
    experts of a pair, the first one decides.
    """
    requested = config.model.placement
    mesh = requested.mode == PER_GPU and not requested.context_parallel
    tokens = requested.mode == TOKENS and not requested.shares
    if not (requested.mode == AUTO or mesh or tokens):
        return config
    one = config.of_expert(config.train.experts[0], roots)
    job = workload_on_clips(one.model, roots, one.lora, one.train, clips, preview=one.preview)
    if tokens and not leaves_shares_open(job):
        return config
    if mesh:
        return _as_planned(config, _with_mesh_here(job))
    plan = plan_here(replace(job, longer_share=longer_share(config.train)))
    if plan is None:
        return replace(config, model=config.model.with_placement(replace(config.model.placement, mode=UNPLANNED)))
    return _as_planned(config, plan.job)


def _as_planned(config: RunConfig, job: Workload) -> RunConfig:
    passes = job.train.gradient_accumulation_steps
    return replace(
        config,
        model=config.model.with_placement(job.model.placement),
        train=replace(config.train, gradient_accumulation_steps=passes),
    )


def _with_mesh_here(job: Workload) -> Workload:
    """Returns a job with the best mesh of ranks for cards like this machine's first one; on CPUs without context
    parallelism."""
    requested = job.model.placement
    names = requested.device_names()
    card = card_of(torch.device(names[0]), job)
    if card is None or requested.ranks == 1:
        return replace(job, model=job.model.with_placement(replace(requested, context_parallel=1)))
    (free,) = free_memory_of_cards([card.gibibytes]).devices.values()
    return with_mesh(job, card, free, len(names))


def in_fullest_process(job: Workload, *, ask_driver: bool) -> tuple[Workload, FreeMemory]:
    """Returns the job on the process with the least free memory of this machine, and that memory.

    Processes that offload the same blocks share their weights in host memory (`sharers`).
    """
    requested, layers = job.model.placement, job.file.variant.shape.num_layers
    processes = processes_by_free_memory(requested, layers, ask_driver=ask_driver)
    (placement, room), (roomiest, most) = processes[0], processes[-1]
    first = placement == resolve_placement(requested, layers)
    job = job if first else replace(job, placement=placement)
    if len(processes) == 1 or not room.devices or not can_share():
        return job, room
    shared = replace(job, sharers=len(processes))
    if [*room.devices.values()] == [*most.devices.values()]:
        return shared, room
    plans = plan_memory(shared, room), plan_memory(replace(shared, placement=roomiest), most)
    return (shared if offload_alike(plan.measures for plan in plans) else job), room


def with_fitting_preview(job: Workload, room: FreeMemory) -> Workload:
    """Returns the job with as many preview frames as fit under the measures that training alone takes, so that
    previews do not slow down steps. Where no frame fits, the preview is as large as a training clip.
    """
    if job.preview is None:
        return job
    base = plan_memory(replace(job, preview=None), room)
    shape = base.job.shape()

    def fits(frames: int) -> bool:
        tried = replace(job, preview=replace(preview, latent_frames=max(frames, least)))
        return not room.lacks(tried.estimate(shape, base.measures))

    preview, least = job.preview, job.file.variant.latent_frames(1)
    frames = largest(preview.latent_frames, fits) if base.fits else 0
    return replace(
        job, preview=replace(preview, latent_frames=max(frames, least)) if frames else replace(job.step, batch_size=1)
    )


def counting_partner(plan: MemoryPlan, partner: OpenRun | None) -> tuple[MemoryPlan, str]:
    """Returns the plan with previews that use `partner` too; if they do not fit, `plan` and the reason.

    One model is on the device at a time, so previews need the larger one. The measures of training stay the same.
    """
    if partner is None or plan.job.preview is None:
        return plan, ""
    config, job = partner.config, plan.job
    theirs = [lora.on_model(config.train.expert_name, pair=True) for lora in (config.preview or SampleConfig()).loras]
    variant, compute = partner.file.variant, partner.file.compute_dtype
    beside = sum(bytes_beside(config.model, partner.roots, variant, compute, theirs).values())
    beside += max(0, weights_once_loaded(config.model, partner.file) - weights_once_loaded(job.model, job.file))
    if beside <= job.beside_preview:
        return plan, ""
    job = replace(job, beside_preview=beside)
    found = replace(plan, job=job, estimate=job.estimate(job.shape(), plan.measures))
    if job.train.memory == "manual" or found.fits:
        return found, ""
    if not plan.fits:  # the run is refused anyway
        return plan, ""
    place, needed, free = found.room.lacks(found.estimate)[0]
    return plan, (
        f"{partner.file.header.path.name} takes {needed / 2**30:.1f} GiB on {place} for its steps, and "
        f"{free / 2**30:.1f} GiB are free."
    )


class Planned(NamedTuple):
    """The plan by which this process trains a model."""

    measures: MemoryMeasures
    recomputing: Recomputing
    """which blocks are checkpointed, and what they keep"""
    measured: Measured | None = None
    """compares measured with predicted memory; None without a prediction"""
    host: int = 0
    """predicted bytes of host memory; 0 without a prediction"""
    no_partner: str = ""
    """why previews cannot use the partner; "" if they can, and without a partner"""


def plan_training(
    run: OpenRun,
    group: Group,
    partner: OpenRun | None = None,
    shared: SharedMemory | None = None,
    *,
    chunk_tokens: int | None = None,
) -> tuple[Planned, str]:
    """Returns the plan of this process, and a remark on it for the user. Every rank calls it.

    `partner`: the other expert for previews; it never changes how the run is trained. `shared`: shared memory of the
    ranks of a machine; offloaded weights count once if these ranks offload the same blocks. `chunk_tokens`: the value
    of the resumed step, the same on all ranks; None for a new run. Devices without a memory limit (CPU) are not
    planned. Raises OutOfMemory if the run does not fit.
    """
    planned, remark = _planned(run, group, partner, len(shared.ranks) if shared is not None else 1, chunk_tokens)
    measures = group.gather(planned.measures)
    if shared is not None and not offload_alike(measures[rank] for rank in shared.ranks):
        planned, remark = _planned(run, group, partner, 1, chunk_tokens)
    chunk = min((one.chunk_tokens for one in measures), key=lambda tokens: tokens or math.inf)
    return planned._replace(measures=replace(planned.measures, chunk_tokens=chunk)), remark


def _planned(
    run: OpenRun, group: Group, partner: OpenRun | None, sharers: int, chunk_tokens: int | None
) -> tuple[Planned, str]:
    """Returns the plan of this process alone, and a remark; see `plan_training`."""
    own = replace(
        requested_measures(run.config.train), chunk_tokens=CHUNK_TOKENS if chunk_tokens is None else chunk_tokens
    )
    placement = resolve_placement(run.config.model.placement, run.variant.shape.num_layers, group.local_rank)
    devices = devices_of(run.config.model.placement, run.variant.shape.num_layers, group.local_rank)
    room = free_memory_here(devices, ask_driver=True)
    if not room.devices:
        return Planned(own, without_a_plan(run.config.train).recomputing), ""
    if room.host is not None:
        room = replace(room, host=room.host // (group.local_world * (2 if run.apart else 1)))
    sharded = group.world > 1 and run.config.model.placement.sharders > 1
    try:
        job = replace(workload_of_run(run, placement), sharers=sharers, chunk_tokens=chunk_tokens)
        if sharded:  # the weights of a block are gathered from other ranks for the time that it runs
            job = replace(job, train=replace(job.train, blocks_to_swap=0))
        plan, no_partner = counting_partner(plan_memory(job, room), partner)
    except WanTrainerError:
        raise
    except Exception:  # a failed prediction must not fail the run
        _log.exception("the memory of the run could not be predicted")
        return Planned(own, run.config.train.recomputing), ""
    plan.check()
    measured = plan.measured()
    if group.world > 1:  # the time of a step depends on the slowest rank
        measured.tflops = None
    recomputing = plan.job.train.recomputing
    if sharded:
        recomputing = replace(recomputing, unchecked=0)
    remark = " ".join(filter(None, (plan.remark(), plan.faster())))
    return Planned(plan.measures, recomputing, measured, plan.estimate.host, no_partner), remark
