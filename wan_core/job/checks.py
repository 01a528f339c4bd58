"""Checks of a run's settings against files and model headers, before anything is loaded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import torch

from ..cache import CacheSet
from ..checkpoint import WanVariant
from ..errors import CheckpointError, ConfigError
from ..files import Roots
from ..kernels import check_ring
from ..load import ModelPlan, WanFile, inspect_model, inspect_pair, resolved_elsewhere
from ..lora import PEFT, LoraConfig, check_start, count_values, read_start
from ..model import WanShape, model_without_values, placed_routes, refuse_driven
from ..parallel import check_clip, exchange_of
from ..precision import QuantizeConfig, QuantizedBy
from ..train import TrainConfig, check_rates, expert_named
from .config import RunConfig


def check_files(config: RunConfig, roots: Roots, *, with_start: bool) -> None:
    """Raises CheckpointError if a base file, frozen LoRA or, `with_start`, start LoRA is not the job's own."""
    job = config if with_start else replace(config, lora=replace(config.lora, start_from=""), start_digest="")
    now = job.with_digests(roots)
    frozen = zip(job.model.loras, now.model.loras, strict=True)
    for what, known, found in (
        (job.model.base_file, job.base_digest, now.base_digest),
        (job.lora.start_from, job.start_digest, now.start_digest),
        *((then.file, then.digest, here.digest) for then, here in frozen),
    ):
        if known and known != found:
            raise CheckpointError(
                "{what} is not the file this run was made with. Put that file back, or start a new run.", what=what
            )


def check_adapters(
    config: LoraConfig,
    shape: WanShape,
    roots: Roots,
    train: TrainConfig | None = None,
    *,
    expert: str | None = None,
) -> int:
    """Returns the number of adapter values; with `train` checks its learning rates by layer too.

    `expert`: high_noise or low_noise for half of a pair, since a start LoRA file may hold both. Raises ConfigError or
    CheckpointError if this model cannot have such adapters or start from that LoRA.
    """
    model = model_without_values(shape)
    values = count_values(model, config)
    if train is not None:
        check_rates(train, values)
    if config.start_from:
        check_start(model, read_start(roots.resolve(config.start_from), expert), config)
    return sum(values.values())


def check_quantize(config: QuantizeConfig, shape: WanShape) -> None:
    """Raises ConfigError if matching its patterns with the model's names takes too long."""
    config.check_names([name for name, _ in model_without_values(shape).named_modules()])


def check_quantized_alike(step: int, noted: object, here: QuantizedBy | None) -> None:
    """Raises CheckpointError if quantization gives other base weights (`here`) than in the saved step (`noted`)."""
    if here is None or not isinstance(noted, dict):
        return
    then = QuantizedBy.from_dict(cast("dict[str, Any]", noted), "quantized_by")
    if then.weights != here.weights:
        by = f"torchao {then.torchao}" if then.torchao else "another version of Wan Trainer"
        raise CheckpointError(
            f"Step {step} was trained on a base quantized by {by}; this version quantizes the same file to other "
            "values. Set resume to new; with start_from_lora the new run begins with the LoRA of that step."
        )


def check_shards(config: RunConfig) -> None:
    """Raises ConfigError for settings that a base sharded over processes cannot have.

    All ranks run the same block at the same time, and its weights are complete only while it runs.
    """
    train = config.train
    wrong = {
        "expert to high or low, one run for each": config.train.expert == "both",
        "gradient_checkpointing to true and unchecked_blocks to 0": not train.gradient_checkpointing
        or train.unchecked_blocks > 0,
        "blocks_to_swap to -1": train.blocks_to_swap > 0,
        "compile to false": train.compile,
        "adapter to LoRA": config.lora.kind in ("DoRA", PEFT),
    }
    if found := [remedy for remedy, is_so in wrong.items() if is_so]:
        raise ConfigError(f"The base is sharded (model.placement.shards). Set {'; '.join(found)}; or shards to 1.")


def check_context(config: RunConfig, clips: CacheSet, file: WanFile, device: torch.device) -> str:
    """Returns the exchange of tokens under context parallelism: all-to-all or ring.

    Raises ConfigError for settings that it cannot have, and for clips that are too small.
    """
    placement, shape, train = config.model.placement, file.variant.shape, config.train
    exchange = exchange_of(placement.context_exchange, shape.num_heads, placement.parts)
    refuse_driven(shape, "context_parallel", "Set model.placement.context_parallel to 1")
    for height, width in {clips.latent_shape(item)[-2:] for item in clips.items}:
        check_clip(height // 2 * (width // 2), placement.parts, placed_routes(train.routes, shape.num_layers))
    if config.lora.drops_inputs:
        raise ConfigError(
            "Processes that train one clip together (model.placement.context_parallel) would draw other dropout "
            "masks than a single process. Set dropout to 0; rank_dropout and module_dropout are the same on all."
        )
    if exchange == "ring":
        numerics = config.model.precision.numerics(file.compute_dtype)
        dtype = numerics.attention or numerics.compute
        if config.model.attention not in ("sdpa", "auto", "sdpa_flash"):
            raise ConfigError(
                f"attention {config.model.attention} does not return the log-sum-exp, which a ring of processes needs. "
                "Set attention to sdpa, or model.placement.context_exchange to all-to-all."
            )
        check_ring(device=device, dtype=dtype, head_dim=shape.dim // shape.num_heads)
    return exchange


def with_model_values(train: TrainConfig, variant: WanVariant) -> TrainConfig:
    """Returns `train` with a shift of 0 replaced by the training shift of `variant`.

    Raises ConfigError for TREAD routes that name layers the model lacks, and for a model that cannot have routes.
    """
    if train.routes:
        refuse_driven(variant.shape, "tread_routes", "Leave it empty")
    placed_routes(train.routes, variant.shape.num_layers)
    return train if train.discrete_flow_shift else replace(train, discrete_flow_shift=variant.training_shift)


def with_scaled_loss(train: TrainConfig, plan: ModelPlan) -> TrainConfig:
    """Returns `train` with loss scaling if the plan fell back to fp16 on a card without bf16."""
    return replace(train, loss_scaling="dynamic") if plan.compute == "fp16" else train


def on_other_cards(config: RunConfig, base_precision: str, loss_scaling: str) -> list[RunConfig]:
    """Returns the job as it would be resolved on cards with other compute dtypes.

    `base_precision`, `loss_scaling`: the requested values, before they were resolved for this machine's card.
    """
    train = replace(config.train, loss_scaling=loss_scaling)
    plans = resolved_elsewhere(config.model, base_precision)
    return [replace(config, model=plan, train=with_scaled_loss(train, plan)) for plan in plans]


def with_expert(variant: WanVariant, expert: str) -> WanVariant:
    """Returns `variant` narrowed to one expert of an A14B pair, by the setting `expert`, or by the file (auto).

    Raises ConfigError if the expert is unknown, and where setting and file contradict each other.
    """
    if expert == "auto":  # never guessed: a LoRA trained on the other expert's noise levels is useless
        if variant.boundary is not None and variant.expert is None:
            raise ConfigError(
                "The model is {name}, but its file name contains neither high nor low noise; each expert is trained "
                "on its own noise levels. Set expert to high or low, or variant in Load Wan Model.",
                name=variant.name,
            )
        return variant
    boundary = variant.pair_boundary
    if variant.expert not in (None, expert_named(expert)):
        raise ConfigError(
            'expert is "{expert}", but the model is {name}. Set expert to auto, or choose the other file; if its '
            "name is wrong, set variant in Load Wan Model.",
            expert=expert,
            name=variant.name,
        )
    if boundary is None:
        raise ConfigError(
            f'expert "{expert}" does not apply to {variant.name}, which has one model. Set expert to auto.'
        )
    return replace(variant, expert=expert_named(expert), boundary=boundary)


def trained_variant(plan: ModelPlan, expert: str, roots: Roots) -> WanVariant:
    """Returns the trained model of `plan`, narrowed to its expert; of both experts the high noise one.

    Raises what `with_expert` does, and CheckpointError for an untrainable file.
    """
    if plan.low_noise_file:
        return inspect_pair(plan, roots)[0].variant
    return with_expert(inspect_model(plan, roots).variant, expert)
