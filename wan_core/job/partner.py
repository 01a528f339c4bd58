"""The partner: the untrained expert of a pair, which renders clips together with the trained expert."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..checkpoint import checkpoint_digest
from ..errors import ConfigError, WanTrainerError
from ..files import Roots
from ..load import ModelPlan, inspect_model, inspect_pair
from ..lora import FrozenLora
from ..train import EXPERTS, expert_setting
from ..words import filled
from .config import RunConfig
from .open import OpenRun


def with_partner(run: OpenRun, plan: ModelPlan) -> tuple[OpenRun, OpenRun]:
    """Returns the trained expert and its partner, high noise first; reads headers only.

    Of a `plan` with both files, the partner is the untrained one, with its frozen LoRAs. Raises ConfigError if the
    run does not train a single expert, CheckpointError if the files are no pair.
    """
    if run.both or run.variant.boundary is None:
        trains = "trains both experts already" if run.both else f"trains {run.variant.name}, which is one model"
        raise ConfigError(f"partner is the other expert of a pair, and the run {trains}. Disconnect it.")
    own, other = EXPERTS if run.variant.expert == EXPERTS[0] else EXPERTS[::-1]
    plan = plan.half(other) if plan.low_noise_file else plan
    model = run.config.model
    files = (model.base_file, plan.base_file) if own == EXPERTS[0] else (plan.base_file, model.base_file)
    stated = next((name for name in (model.variant, plan.variant) if name.endswith(" noise")), "auto")
    pair = inspect_pair(ModelPlan(base_file=files[0], low_noise_file=files[1], variant=stated), run.roots)
    as_the_run = model.base_precision if plan.base_precision == "as in file" else plan.base_precision
    plan = replace(plan, variant=pair[EXPERTS.index(other)].variant.name, base_precision=as_the_run)
    config = run.config
    trained = replace(
        run, config=replace(config, train=replace(config.train, expert=expert_setting(own))), has_partner=True
    )
    partner = replace(
        trained,
        config=replace(config, model=plan, train=replace(config.train, expert=expert_setting(other))),
        file=inspect_model(plan, run.roots),
        trained=False,
    )
    return (trained, partner) if own == EXPERTS[0] else (partner, trained)


def pair_of_previews(run: OpenRun, warn: Callable[[str], None]) -> tuple[OpenRun, ...]:
    """Returns the pair for previews of `run`, high noise first; () if it renders alone.

    An unavailable partner is only a warning, passed to `warn`.
    """
    config = run.config
    if config.partner is None or not config.train.preview_every_n_steps:
        return ()
    if config.model.placement.sharders > 1:  # reloading a sharded model takes all ranks
        warn(no_pair("the base is sharded over processes, and one alone cannot make room for another model."))
        return ()
    try:
        pair = with_partner(run, config.partner)
        now = checkpoint_digest(run.roots.resolve(config.partner.base_file))
    except WanTrainerError as error:
        warn(no_pair(str(error)))
        return ()
    if config.partner_digest not in ("", now):
        warn(
            f"{config.partner.base_file.rpartition(':')[2]} is not the file that earlier previews of this run used: "
            "new previews are not comparable with them."
        )
    return pair


def with_partner_digest(config: RunConfig, roots: Roots) -> RunConfig:
    """Returns the config with the digest of its partner."""
    if config.partner is None:
        return config
    return replace(config, partner_digest=checkpoint_digest(roots.resolve(config.partner.base_file)))


def partner_note(partner: OpenRun, previewed: tuple[FrozenLora, ...]) -> str:
    """Returns the note on the partner and the LoRAs on it; `previewed`: LoRAs of the preview settings."""
    expert = partner.config.train.expert_name
    theirs = [lora.on_model(expert, pair=True) for lora in previewed]
    under = (lora.in_previews() for lora in partner.config.model.loras)
    acts = [one for one in (*under, *theirs) if one.file and one.strength]
    said = ", ".join(f"{one.file.rpartition(':')[2]} at {one.strength:g}" for one in acts)
    return filled(
        "Previews use both experts. The {expert} noise expert, which this run does not train, is {file}; LoRAs on it: "
        "{loras}.",
        expert=expert_setting(expert),
        file=partner.file.header.path.name,
        loras=said or "none",
    )


def no_pair(reason: str) -> str:
    """Returns the warning that previews do not use the partner."""
    return filled("Previews cannot use both experts, so the trained expert makes them alone: {reason}", reason=reason)
