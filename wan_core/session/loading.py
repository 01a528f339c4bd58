"""Reads the weights of a run's models, and makes their trainers."""

from __future__ import annotations

from ..cache import Batches, stack_texts
from ..checkpoint import ReadTogether, checkpoint_files
from ..dataset import NOTHING_TO_PREDICT
from ..files import file_mark
from ..job.checks import check_context, check_shards
from ..job.open import OpenRun
from ..job.remarks import (
    notes_on_cards,
    remark_on_adapter,
    remark_on_scaling,
    remarks_on_attention,
    remarks_on_base,
    remarks_on_cards,
)
from ..load import materialize
from ..lora import LoraConfig, adapter_parameters
from ..model import WanTransformer
from ..parallel import RankTokens, Sharding
from ..placement import MemoryMeasures, SharedMemory, resolve_placement
from ..plan.here import Planned
from ..train import Trainer, largest_step
from .session import Session


def read_weights(
    session: Session,
    run: OpenRun,
    adapters: LoraConfig | None = None,
    measures: MemoryMeasures | None = None,
    shared: SharedMemory | None = None,
    sharding: Sharding | None = None,
    together: ReadTogether | None = None,
    *,
    trains: bool = False,
) -> WanTransformer:
    """Returns the model of `run` on its devices, with new `adapters`; without `measures` nothing is offloaded.

    `trains`: also place the copies that split the tokens of a clip. `shared`: shared memory of the ranks of a machine.
    `sharding`: the ranks that hold its blocks together. `together`: reads the base once for all ranks. Raises Stopped
    on a stop request while weights are read.
    """
    plan = run.config.model
    return materialize(
        plan if trains else plan.with_placement(plan.placement.without_parts()),
        run.roots,
        adapters,
        seed=run.config.train.seed,
        rank=session.group.local_rank,
        on_tensor=session.on_tensor,
        found=run.file,
        measures=measures,
        shared=shared,
        sharding=sharding,
        together=together,
    )


def _sharding(session: Session, run: OpenRun) -> Sharding | None:
    """Returns the ranks that hold the blocks of `run` with this one; None if each rank holds all.

    Every rank calls it. Raises what `check_shards` does.
    """
    placement, group = run.config.model.placement, session.group
    sharders = placement.sharders if group.world > 1 else 1
    if sharders == 1:
        return None
    check_shards(run.config)
    device = resolve_placement(placement, run.variant.shape.num_layers, group.local_rank).first
    return Sharding(group.shard_mesh(sharders, device), group.share, group.leads, group.naming_lost)


def _together(session: Session, run: OpenRun) -> ReadTogether | None:
    """Returns the reader that reads the base of `run` once for all ranks; None if each rank reads all of it.

    Every rank calls it. Ranks of one machine all read the file, from the page cache. Several machines divide the reads
    if they all see the same size, modification time and inode, which differ between copies of a file.
    """
    group = session.group
    if group.local_world == group.world:
        return None
    marks = group.gather([file_mark(file)[:3] for file in checkpoint_files(run.file.header.path)])
    if any(mark != marks[0] for mark in marks):
        return None
    session.note(
        f"The base lies on storage that all machines share, so it is read once: each of {group.world} processes reads "
        "a part and sends it to the others."
    )
    return group.read_together


def _exchange(session: Session, run: OpenRun) -> str:
    """Returns how the ranks that train one clip together exchange its tokens; "" if each trains its own clips.

    Raises what `check_context` does.
    """
    if session.group.parts == 1:
        return ""
    placement, layers = run.config.model.placement, run.variant.shape.num_layers
    device = resolve_placement(placement, layers, session.group.local_rank).first
    return check_context(run.config, run.cache_set, run.file, device)


def load_model(
    session: Session, run: OpenRun, planned: Planned, *, with_start: bool, shared: SharedMemory | None
) -> WanTransformer:
    """Returns the model that `run` trains, with new adapters, or with `with_start` its start LoRA; emits its warnings.

    Raises what `read_weights` does.
    """
    plan, compute = run.config.model, run.file.compute_dtype
    warnings = [
        *remarks_on_attention(plan, run.file, largest_step(run.cache_set, run.config.train.batch_size)),
        *remarks_on_base(plan, run.file),
    ]
    warnings += [*remarks_on_cards(plan, compute), *([NOTHING_TO_PREDICT] if run.cache_set.given_whole else [])]
    for warning in [*warnings, *remark_on_scaling(plan, compute, run.config.train)]:
        session.warn(warning)
    for note in notes_on_cards(plan, compute):
        session.note(note)
    sharding, exchange = _sharding(session, run), _exchange(session, run)
    adapters = run.adapters(with_start=with_start)
    together = _together(session, run)
    model = read_weights(session, run, adapters, planned.measures, shared, sharding, together, trains=True)
    if exchange:
        model.team = RankTokens(model, session.group.clip_ranks(next(model.parameters()).device), exchange)
    session.note(remark_on_adapter(run.config.lora, sum(p.numel() for p in adapter_parameters(model).values())))
    return model


def make_trainer(session: Session, run: OpenRun, model: WanTransformer, planned: Planned) -> Trainer:
    """Returns the trainer of a model of `run`, at step 0."""
    train, cache, cache_set = run.config.train, run.cache, run.cache_set
    batches = Batches(
        cache_set,
        cache,
        seed=train.seed,
        batch_size=train.batch_size,
        rank=session.group.batch,
        world=session.group.batches,
        bucket_sampling=train.bucket_sampling,
    )
    return Trainer(
        model,
        batches,
        stack_texts([cache.read_text(cache_set.empty_text_key)])[0],
        run.settings,
        sigma_range=run.variant.sigma_range(),
        first_frame_share=run.first_frame_share,
        emit=session.emit,
        control=session.control,
        group=session.group,
        recomputing=planned.recomputing,
        predicted_memory=planned.measured.of_a_step() if planned.measured is not None else {},
    )
