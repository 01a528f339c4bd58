"""The way from a run's open files to a trainer.

It makes the model with its adapters, the batches and the previewer, and takes up the saved state.

Reads only. What is worth a word on the way is emitted as a note, in the order in which it is found.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from ..cache import Batches, pad_text, synthetic_note
from ..control import Control
from ..errors import Stopped, WanTrainerError
from ..events import Emit, Note, Stage
from ..load import materialize
from ..model import WanTransformer
from ..placement import MemoryMeasures, resolve_placement, room_here
from ..precision import QuantizedBy, quantized_by
from ..sampler import SampleConfig
from ..train import (
    Group,
    Previewer,
    PreviewInputs,
    SavedStep,
    SaveStore,
    TargetFunction,
    TrainConfig,
    Trainer,
    read_preview_inputs,
)
from ..words import logger
from .checks import check_quantized_alike
from .memory_report import job_of_run, measured_against
from .open import OpenRun
from .own_runs import Measured
from .planning import asked_measures, plan_memory, without_a_plan
from .remarks import disk_remark, preview_note, remarks_on_attention, remarks_on_base, set_aside_note

__all__ = ["LoadedRun", "load_run"]

_log = logger(__name__)


@dataclass(frozen=True)
class LoadedRun:
    """A run that is ready to train."""

    run: OpenRun
    model: WanTransformer
    trainer: Trainer
    previewer: Previewer | None
    quantized_by: QuantizedBy | None
    """the mark of the 8-bit weights of the base; None where they are not made here"""
    measured: Measured | None = None


def load_run(
    run: OpenRun,
    store: SaveStore,
    saved: SavedStep | None,
    *,
    emit: Emit,
    control: Control,
    group: Group,
    target: TargetFunction,
) -> LoadedRun:
    """Load what `run` trains, and go on after `saved` where there is such a step.

    Raises what `OpenRun.check` refuses, CheckpointError for 8-bit weights that are not those a step was trained on, and
    Stopped when a stop is asked for while the weights are read.
    """
    config, file = run.config, run.file
    run.check(with_start=saved is None)
    if note := synthetic_note(run.cache_set):
        emit(Note(text=note, level="warning"))
    quantize = config.model.quantize
    made_by = None if quantize is None else quantized_by(quantize, file.compute_dtype)
    if saved is not None:
        check_quantized_alike(saved, made_by)
    for remark in [*remarks_on_attention(config.model, file), *remarks_on_base(config.model, file)]:
        emit(Note(text=remark, level="warning"))
    previews = _preview_inputs(run) if group.leads else None
    planned = _planned(run, emit, group)
    model = _materialize(run, emit, control, group, planned.measures, with_start=saved is None)
    trainer = _trainer(run, model, emit, control, group, target, planned)
    if saved is not None:
        trainer.load_state(saved.read_state(), saved.progress)
        emit(Note(text=f"Continues after saved step {saved.step} of {config.train.steps}."))
    if group.leads and (note := set_aside_note(store)):
        emit(Note(text=note))
    previewer = None
    if previews is not None:
        previewer = Previewer(model, previews, run.directory, emit=emit, control=control)
        if note := preview_note(run.variant):
            emit(Note(text=note))
    if remark := disk_remark(run.directory, trainer):
        emit(Note(text=remark, level="warning"))
    return LoadedRun(run, model, trainer, previewer, made_by, planned.measured)


def _preview_inputs(run: OpenRun) -> PreviewInputs | None:
    """Returns the inputs of previews; None for a run without."""
    if not run.config.train.preview_every_n_steps:
        return None
    return read_preview_inputs(
        run.cache,
        run.cache_set,
        run.config.preview or SampleConfig(),
        starts_from_clip=run.first_frame_share == 1.0,
    )


class _Planned(NamedTuple):
    """How this process trains."""

    measures: MemoryMeasures
    settings: TrainConfig
    """the run's own, with what they leave to the planner"""
    measured: Measured | None = None
    """hears what it takes beside what was predicted, where something was"""


def _planned(run: OpenRun, emit: Emit, group: Group) -> _Planned:
    """Returns what the planner chose.

    Raises OutOfMemory where it does not fit. Where no device has an end, as the CPU, nothing is predicted.
    """
    placement = resolve_placement(run.config.model.placement, run.variant.shape.num_layers, group.rank)
    room = room_here(placement.devices, ask_driver=True)
    if not room.devices:
        return _Planned(asked_measures(run.config.train), without_a_plan(run.settings))
    if room.host is not None:
        room = replace(room, host=room.host // group.world)
    try:
        plan = plan_memory(job_of_run(run, placement), room)
    except WanTrainerError:
        raise
    except Exception:  # a run is worth more than its prediction
        _log.exception("the memory of the run could not be predicted")
        return _Planned(asked_measures(run.config.train), run.settings)
    plan.check()
    if remark := plan.remark():
        emit(Note(text=remark))
    measured = measured_against(plan)
    if group.world > 1:  # the time of a step is that of all ranks
        measured.tflops = None
    policy = plan.job.train.checkpointing_policy
    return _Planned(plan.measures, replace(run.settings, checkpointing_policy=policy), measured)


def _materialize(
    run: OpenRun, emit: Emit, control: Control, group: Group, measures: MemoryMeasures, *, with_start: bool
) -> WanTransformer:
    def on_tensor(done: int, total: int) -> None:
        if done % 50 == 0 or done == total:
            emit(Stage(stage="load", done=done, total=total))
        if (reason := control.stop_reason()) and group.world == 1:
            raise Stopped(reason)

    return materialize(
        run.config.model,
        run.roots,
        run.adapters(with_start=with_start),
        seed=run.config.train.seed,
        rank=group.rank,
        on_tensor=on_tensor,
        found=run.file,
        measures=measures,
    )


def _trainer(
    run: OpenRun,
    model: WanTransformer,
    emit: Emit,
    control: Control,
    group: Group,
    target: TargetFunction,
    planned: _Planned,
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
        pad_text(cache.read_text(cache_set.empty_text_key)),
        planned.settings,
        sigma_range=run.variant.sigma_range(),
        first_frame_share=run.first_frame_share,
        emit=emit,
        control=control,
        group=group,
        predicted_memory=planned.measured.of_a_step() if planned.measured is not None else {},
        target=target,
    )
