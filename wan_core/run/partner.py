"""The expert of a pair that a run does not train: clips of the other one go through both with it."""

from __future__ import annotations

from dataclasses import replace

from ..checkpoint.catalogue import HIGH
from ..errors import ConfigError
from ..load import ModelPlan, inspect_model, inspect_pair
from ..lora import FrozenLora
from ..train import EXPERTS
from .open import OpenRun

__all__ = ["partner_note", "with_partner"]


def with_partner(run: OpenRun, plan: ModelPlan) -> tuple[OpenRun, OpenRun]:
    """Returns the expert that `run` trains and its partner of `plan`, high noise first; reads headers only.

    A plan of both files means the one that the run does not train, with what frozen LoRAs it has for it. Raises
    ConfigError where the run trains no single expert, CheckpointError where the files are no pair.
    """
    if run.both or run.variant.boundary is None:
        trains = "trains both experts already" if run.both else f"trains {run.variant.name}, which is one model"
        raise ConfigError(f"partner is the other expert of a pair, and the run {trains}. Take the link away.")
    own, other = EXPERTS if run.variant.expert == HIGH else EXPERTS[::-1]
    plan = plan.half(other) if plan.low_noise_file else plan
    model = run.config.model
    files = (model.base_file, plan.base_file) if own == EXPERTS[0] else (plan.base_file, model.base_file)
    stated = next((name for name in (model.variant, plan.variant) if name.endswith(" noise")), "auto")
    pair = inspect_pair(ModelPlan(base_file=files[0], low_noise_file=files[1], variant=stated), run.roots)
    as_the_run = model.base_precision if plan.base_precision == "as in file" else plan.base_precision
    plan = replace(plan, variant=pair[EXPERTS.index(other)].variant.name, base_precision=as_the_run)
    config = run.config
    trained = replace(run, config=replace(config, train=replace(config.train, expert=own)), has_partner=True)
    partner = replace(
        trained,
        config=replace(config, model=plan, train=replace(config.train, expert=other)),
        file=inspect_model(plan, run.roots),
        trained=False,
    )
    return (trained, partner) if own == EXPERTS[0] else (partner, trained)


def partner_note(partner: OpenRun, previewed: tuple[FrozenLora, ...]) -> str:
    """Returns which partner clips go through, and with which LoRAs; `previewed`: those that previews have."""
    expert = partner.config.train.expert
    theirs = [lora.on_model(expert, pair=True) for lora in previewed]
    acts = [one for one in (*partner.config.model.loras, *theirs) if one.file and one.strength]
    under = ", ".join(f"{one.file.rpartition(':')[2]} at {one.strength:g}" for one in acts)
    return (
        f"Clips go through the pair. The {expert} noise expert, which this run does not train, is "
        f"{partner.file.header.path.name}; LoRAs on it: {under or 'none'}."
    )
