"""Reads the weights of a run's models, and makes their trainers."""

from __future__ import annotations

from typing import Any

from ..cache import Batches, stack_texts
from ..dataset import NOTHING_TO_PREDICT
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
from ..placement import SharedMemory, resolve_placement
from ..plan.here import Planned
from ..train import Trainer, largest_step
from .session import Session


def read_weights(
    session: Session, run: OpenRun, adapters: LoraConfig | None = None, *, trains: bool = False, **how: Any
) -> WanTransformer:
    """Returns the model of `run` on its devices, with new `adapters`; without `measures` nothing is offloaded.

    `trains`: also place the copies that split the tokens of a clip. `how`: further arguments of `materialize`. Raises
    Stopped on a stop request while weights are read.
    """
    plan, seed, rank = run.config.model, run.config.train.seed, session.group.local_rank
    own = plan if trains else plan.with_placement(plan.placement.without_parts())
    how |= {"seed": seed, "rank": rank, "on_tensor": session.on_tensor, "found": run.file}
    return materialize(own, run.roots, adapters, **how)


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
    warnings = remarks_on_attention(plan, run.file, largest_step(run.cache_set, run.config.train.batch_size))
    warnings += [*remarks_on_base(plan, run.file), *remarks_on_cards(plan, compute)]
    warnings += [NOTHING_TO_PREDICT] if run.cache_set.given_whole else []
    for warning in [*warnings, *remark_on_scaling(plan, compute, run.config.train)]:
        session.warn(warning)
    for note in notes_on_cards(plan, compute):
        session.note(note)
    sharding, exchange = _sharding(session, run), _exchange(session, run)
    how = {"measures": planned.measures, "shared": shared, "sharding": sharding}
    model = read_weights(session, run, run.adapters(with_start=with_start), trains=True, **how)
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
