"""The last words of a run: which LoRA goes on which model, at which strength, and in which graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..export import trigger_phrase
from ..families import template_called
from ..load import ModelPlan
from ..train import EXPERTS, SavedStep
from .config import RunConfig


def used_on(config: RunConfig, loras: Mapping[str, str], trigger: str = "") -> list[dict[str, Any]]:
    """Returns which LoRA goes on which model file. Those it was trained over come first, with the strengths they had;
    its own is used at 1.0.

    `loras`: the names of its own, by expert high and low, or "" where one model is trained. `trigger`: the words that
    belong into prompts.
    """
    files = (config.model.base_file, config.model.low_noise_file)
    experts = EXPERTS if config.train.expert == "both" else ("",)
    own = [
        {"lora": loras[expert], "model": file.partition(":")[2], **({"trigger": trigger} if trigger else {})}
        for expert, file in zip(experts, files, strict=False)
        if expert in loras
    ]
    return [*_under(config.model), *own] if own else []


def _under(plan: ModelPlan) -> list[dict[str, Any]]:
    """Returns where the LoRAs go that acted under the trained one."""
    return [
        {"lora": lora.partition(":")[2], "model": model.partition(":")[2], "strength": strength}
        for under in plan.loras
        for lora, strength, model in (
            (under.file, under.strength, plan.base_file),
            (under.low_noise_file, under.low_noise_strength, plan.low_noise_file),
        )
        if lora and model
    ]


def closing_of(saved: SavedStep | None, config: RunConfig, variant: str) -> dict[str, Any]:
    """Returns what a worker says of its newest saved step as it ends: `use`, with files below the run, and `template`,
    ComfyUI's own graph of the model, "" where none is known. `variant`: the model's name, "" where it was not read.
    """
    if saved is None:
        return {}
    loras = {
        expert: f"{saved.folder.parent.name}/{saved.folder.name}/{file.name}" for expert, file in saved.loras.items()
    }
    return {"use": used_on(config, loras, trigger_phrase(saved.lora_file)), "template": template_called(variant)}
