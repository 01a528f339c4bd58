"""Checks of a run's settings against the files and the model at hand, before anything is loaded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from ..checkpoint import WanVariant
from ..errors import CheckpointError, ConfigError
from ..files import Roots
from ..load import ModelPlan, inspect_model, inspect_pair, settled_elsewhere
from ..lora import LoraConfig, check_start, count_values, read_start
from ..model import WanShape, model_without_values, placed_routes
from ..precision import QuantizeConfig, QuantizedBy
from ..train import TrainConfig, check_rates, expert_named
from .config import RunConfig


def check_files(config: RunConfig, roots: Roots, *, with_start: bool) -> None:
    """Refuse another base, or with `with_start` another start LoRA, than the job was made with: it is another job.

    Raises CheckpointError naming the file that was exchanged.
    """
    asked = config if with_start else replace(config, lora=replace(config.lora, start_from=""), start_digest="")
    now = asked.with_digests(roots)
    under = zip(asked.model.loras, now.model.loras, strict=True)
    for what, known, found in (
        (asked.model.base_file, asked.base_digest, now.base_digest),
        (asked.lora.start_from, asked.start_digest, now.start_digest),
        *((then.file, then.digest, here.digest) for then, here in under),
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
    """Returns how many values the adapters have; with `train` their own learning rates are looked at too.

    `expert`: high_noise or low_noise of a model that is half of a pair: a LoRA file may hold both.

    Raises ConfigError or CheckpointError when a model of that shape cannot be adapted so, or not start from that LoRA:
    asked before a run has a folder, and long before its weights are read.
    """
    model = model_without_values(shape)
    values = count_values(model, config)
    if train is not None:
        check_rates(train, values)
    if config.start_from:
        check_start(model, read_start(roots.resolve(config.start_from), expert), config)
    return sum(values.values())


def check_quantize(config: QuantizeConfig, shape: WanShape) -> None:
    """Raises ConfigError when its patterns cannot be matched with the names of that model in good time."""
    config.check_names([name for name, _ in model_without_values(shape).named_modules()])


def check_quantized_alike(step: int, noted: object, here: QuantizedBy | None) -> None:
    """Refuse to go on upon other 8-bit weights than a step was trained on: they may be made otherwise of one file.

    `noted` is what the saved step says of them. Raises CheckpointError. Steps saved before this was noted pass.
    """
    if here is None or not isinstance(noted, dict):
        return
    then = QuantizedBy.from_dict(cast("dict[str, Any]", noted), "quantized_by")
    if then.weights != here.weights:
        by = f"torchao {then.torchao}" if then.torchao else "another version of Wan Trainer"
        raise CheckpointError(
            f"Step {step} was trained on 8-bit weights that {by} made; this one makes others of the same file. "
            "Set resume to new; with start_from_lora the new run begins with the LoRA of that step."
        )


def check_ranks_alike(step: int, noted: object, here: int) -> None:
    """Refuse to go on with another number of processes: each step would see other clips, and as many more or fewer.

    `noted` is what the saved step says, None where one process made it or it was saved before this was noted.
    """
    if isinstance(noted, int) and noted != here:
        raise ConfigError(
            f"Step {step} was trained by {noted} processes, and this would go on with {here}. Start {noted} of them, "
            "or make a new run: new NAME --like RUN; with start_from_lora it begins with the LoRA of that step."
        )


def with_model_values(train: TrainConfig, variant: WanVariant) -> TrainConfig:
    """Returns `train` with the values it leaves to the model: those of `variant`.

    Raises ConfigError where it names layers that the model lacks.
    """
    placed_routes(train.routes, variant.shape.num_layers)
    return train if train.discrete_flow_shift else replace(train, discrete_flow_shift=variant.training_shift)


def with_scaled_loss(train: TrainConfig, plan: ModelPlan) -> TrainConfig:
    """Returns `train` with its loss scaled where the plan took fp16 of itself: nobody chose to lose small gradients."""
    return replace(train, loss_scaling="dynamic") if plan.compute == "fp16" else train


def on_other_cards(config: RunConfig, base_precision: str, loss_scaling: str) -> list[RunConfig]:
    """Returns the job as it is settled on other cards, which compute in other dtypes.

    `base_precision`, `loss_scaling`: as requested, before this machine's card settled them.
    """
    train = replace(config.train, loss_scaling=loss_scaling)
    plans = settled_elsewhere(config.model, base_precision)
    return [replace(config, model=plan, train=with_scaled_loss(train, plan)) for plan in plans]


def with_expert(variant: WanVariant, expert: str) -> WanVariant:
    """Narrow the noise range to one expert of an A14B pair: the one that the setting `expert` says, or the file (auto).

    ConfigError when neither says which, or both say something else: trained on the wrong noise, a LoRA is useless.
    """
    if expert == "auto":
        if variant.boundary is not None and variant.expert is None:
            raise ConfigError(
                "The model is {name}, and its file name says neither high nor low noise; each expert is trained "
                "on its own noise levels. Set expert to high or low, or variant in Load Wan Model.",
                name=variant.name,
            )
        return variant
    boundary = variant.pair_boundary
    if variant.expert not in (None, expert_named(expert)):
        raise ConfigError(
            'expert is "{expert}", and the model is {name}. Set expert to auto, or choose the other file; '
            "if its name is wrong, set variant in Load Wan Model.",
            expert=expert,
            name=variant.name,
        )
    if boundary is None:
        raise ConfigError(
            f'expert "{expert}" makes no sense for {variant.name}, which has one model. Set expert to auto.'
        )
    return replace(variant, expert=expert_named(expert), boundary=boundary)


def trained_variant(plan: ModelPlan, expert: str, roots: Roots) -> WanVariant:
    """Returns the model that a run of `plan` trains, narrowed to its expert; of both experts the high noise one.

    Raises what `with_expert` does, and CheckpointError for a file that cannot be trained.
    """
    if plan.low_noise_file:
        return inspect_pair(plan, roots)[0].variant
    return with_expert(inspect_model(plan, roots).variant, expert)
