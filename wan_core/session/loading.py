"""The way from a run's open files to a trainer: the plan of its memory, the model with its adapters, the batches.

Reads only. What is worth a word on the way is emitted as a note, in the order in which it is found.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from ..cache import Batches, stack_texts
from ..control import Control
from ..errors import Stopped, WanTrainerError
from ..events import Emit, Note, Stage
from ..job.open import OpenRun
from ..job.remarks import (
    notes_on_cards,
    remark_on_adapter,
    remark_on_scaling,
    remarks_on_attention,
    remarks_on_base,
    remarks_on_cards,
    remarks_on_clips,
)
from ..load import materialize
from ..lora import adapter_parameters
from ..model import WanTransformer
from ..placement import MemoryMeasures, SharedMemory, resolve_placement, room_here
from ..plan.memory_report import job_of_run, measured_against
from ..plan.own_runs import Measured
from ..plan.partner import counting_partner
from ..plan.planning import asked_measures, plan_memory, rest_alike, without_a_plan
from ..sampler import SampleConfig
from ..train import (
    Group,
    PreviewInputs,
    TargetFunction,
    TrainConfig,
    Trainer,
    read_preview_inputs,
)
from ..words import logger

_log = logger(__name__)


class Loaded(NamedTuple):
    """A model that is ready to be trained."""

    model: WanTransformer
    trainer: Trainer


def load_model(
    run: OpenRun,
    planned: Planned,
    *,
    with_start: bool,
    emit: Emit,
    control: Control,
    group: Group,
    target: TargetFunction,
    shared: SharedMemory | None = None,
) -> Loaded:
    """Load the model that `run` trains, with new adapters: those of its start LoRA with `with_start`.

    `shared`: the memory that the ranks of a machine have together; not all of them need to load it at once.

    Raises Stopped when a stop is asked for while the weights are read.
    """
    plan, compute = run.config.model, run.file.compute_dtype
    remarks = [*remarks_on_cards(plan, compute), *remarks_on_clips(run.cache_set)]
    remarks += remark_on_scaling(plan, compute, run.config.train)
    for remark in [*remarks_on_attention(plan, run.file), *remarks_on_base(plan, run.file), *remarks]:
        emit(Note(text=remark, level="warning"))
    for note in notes_on_cards(plan, compute):
        emit(Note(text=note))
    model = _materialize(run, emit, control, group, planned.measures, shared, with_start=with_start)
    if remark := remark_on_adapter(run.config.lora, sum(p.numel() for p in adapter_parameters(model).values())):
        emit(Note(text=remark))
    return Loaded(model, _trainer(run, model, emit, control, group, target, planned))


def load_partner(run: OpenRun, planned: Planned, *, emit: Emit, control: Control, group: Group) -> WanTransformer:
    """Load the model of `run`, which only renders: it rests in host memory as far as the trained one does (`planned`).

    Raises Stopped when a stop is asked for while the weights are read.
    """
    return materialize(
        run.config.model,
        run.roots,
        None,
        rank=group.local_rank,
        on_tensor=_told_of_loading(emit, control, group),
        found=run.file,
        measures=planned.measures,
    )


def preview_inputs(run: OpenRun) -> PreviewInputs | None:
    """Returns the inputs of previews; None for a run without."""
    if not run.config.train.preview_every_n_steps:
        return None
    return read_preview_inputs(
        run.cache,
        run.cache_set,
        run.config.preview or SampleConfig(),
        run.variant,
        starts_from_clip=run.first_frame_share == 1.0,
    )


class Planned(NamedTuple):
    """The plan by which this process trains a model."""

    measures: MemoryMeasures
    settings: TrainConfig
    """the run's own, with what they leave to the planner"""
    measured: Measured | None = None
    """hears what it takes beside what was predicted, where something was"""
    host: int = 0
    """bytes of host memory it takes, where that was predicted"""
    no_partner: str = ""
    """why its previews cannot go through the partner; empty where they can, or there is none"""


def plan_training(
    run: OpenRun, emit: Emit, group: Group, partner: OpenRun | None = None, shared: SharedMemory | None = None
) -> Planned:
    """Returns what the planner chose. `partner` never changes how it is trained: its previews fit beside that, or not.

    Every rank calls it at once. `shared`: the memory that those of a machine have together; its weights count once
    where as many blocks rest for all of them. Raises OutOfMemory where it does not fit. Where no device has an end, as
    the CPU, nothing is predicted.
    """
    planned, remark = _planned(run, group, partner, len(shared.ranks) if shared is not None else 1)
    measures = group.gather(planned.measures)
    if shared is not None and not rest_alike(measures[rank] for rank in shared.ranks):
        planned, remark = _planned(run, group, partner, 1)
    if remark:
        emit(Note(text=remark))
    return planned


def _planned(run: OpenRun, group: Group, partner: OpenRun | None, sharers: int) -> tuple[Planned, str]:
    """Returns what the planner chose, and what to say of it."""
    placement = resolve_placement(run.config.model.placement, run.variant.shape.num_layers, group.local_rank)
    room = room_here(placement.devices, ask_driver=True)
    if not room.devices:
        return Planned(asked_measures(run.config.train), without_a_plan(run.settings)), ""
    if room.host is not None:
        room = replace(room, host=room.host // group.local_world)
    try:
        job = replace(job_of_run(run, placement), sharers=sharers)
        plan, no_partner = counting_partner(plan_memory(job, room), partner)
    except WanTrainerError:
        raise
    except Exception:  # a run is worth more than its prediction
        _log.exception("the memory of the run could not be predicted")
        return Planned(asked_measures(run.config.train), run.settings), ""
    plan.check()
    measured = measured_against(plan)
    if group.world > 1:  # the time of a step is that of all ranks
        measured.tflops = None
    policy = plan.job.train.checkpointing_policy
    settings = replace(run.settings, checkpointing_policy=policy)
    return Planned(plan.measures, settings, measured, plan.estimate.host, no_partner), plan.remark()


def _materialize(
    run: OpenRun,
    emit: Emit,
    control: Control,
    group: Group,
    measures: MemoryMeasures,
    shared: SharedMemory | None,
    *,
    with_start: bool,
) -> WanTransformer:
    return materialize(
        run.config.model,
        run.roots,
        run.adapters(with_start=with_start),
        seed=run.config.train.seed,
        rank=group.local_rank,
        on_tensor=_told_of_loading(emit, control, group),
        found=run.file,
        measures=measures,
        shared=shared,
    )


def _told_of_loading(emit: Emit, control: Control, group: Group) -> Callable[[int, int], None]:
    def on_tensor(done: int, total: int) -> None:
        if done % 50 == 0 or done == total:
            emit(Stage(stage="load", done=done, total=total))
        if (reason := control.stop_reason()) and group.world == 1:
            raise Stopped(reason)

    return on_tensor


def _trainer(
    run: OpenRun,
    model: WanTransformer,
    emit: Emit,
    control: Control,
    group: Group,
    target: TargetFunction,
    planned: Planned,
) -> Trainer:
    config, cache, cache_set = run.config, run.cache, run.cache_set
    batches = Batches(
        cache_set,
        cache,
        seed=config.train.seed,
        batch_size=config.train.batch_size,
        rank=group.rank,
        world=group.world,
        bucket_sampling=config.train.bucket_sampling,
    )
    return Trainer(
        model,
        batches,
        stack_texts([cache.read_text(cache_set.empty_text_key)])[0],
        planned.settings,
        sigma_range=run.variant.sigma_range(),
        first_frame_share=run.first_frame_share,
        emit=emit,
        control=control,
        group=group,
        predicted_memory=planned.measured.of_a_step() if planned.measured is not None else {},
        target=target,
    )
