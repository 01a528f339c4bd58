"""Outcome of a run: the suggested saved step, and the models and the graph for its LoRAs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..events import Suggested
from ..export import trigger_phrase
from ..families import template_called
from ..load import ModelPlan
from ..metrics import (
    Suggestion,
    broken_previews,
    read_experts,
    read_loss_curve,
    read_measured,
    records_of,
    suggest,
    suggest_of_pair,
    whole,
)
from ..train import EXPERTS, SavedStep, SaveStore
from .config import RunConfig

_METRICS = "metrics.jsonl"


def suggestion_of(directory: Path, *, nothing_to_learn: str = "") -> Suggestion:
    """Returns the suggestion from the current metrics. `nothing_to_learn`: why a loss on these clips is meaningless."""
    store, metrics = SaveStore(directory), directory / _METRICS
    saved = [step for step in store.steps() if not store.is_suspect(step)]
    experts, broken = read_experts(metrics), broken_previews(metrics)
    if set(experts) <= {""}:
        curve = read_loss_curve(metrics)
        return suggest(experts.get("", []), saved, curve=curve, broken=broken, nothing_to_learn=nothing_to_learn)
    curves = {name: read_loss_curve(metrics, name) for name in experts}
    return suggest_of_pair(experts, saved, curves=curves, broken=broken, nothing_to_learn=nothing_to_learn)


def steps_worth_keeping(directory: Path) -> set[int]:
    """Returns the saved steps that may prove best: the step of the lowest evaluation loss, and the suggested step."""
    # The lowest loss may be noise, but a removed step could never be suggested later.
    saved = set(SaveStore(directory).steps())
    measured = [point for point in read_measured(directory / _METRICS) if point.step in saved]
    settled = [point for point in measured if point.settled]
    lowest = {min(points, key=lambda point: point.loss).step for points in (measured, settled) if points}
    suggested = [whole(record.get("best")) for record in records_of(directory / _METRICS, (Suggested.name,))]
    return lowest | ({suggested[-1]} if suggested and suggested[-1] is not None else set())


def suggested_step(directory: Path) -> int | None:
    """Returns the newest suggestion of the run, or else one computed now; None if that saved step is not intact."""
    suggested = [record.get("best") for record in records_of(directory / _METRICS, (Suggested.name,))]
    step = whole(suggested[-1]) if suggested else suggestion_of(directory).step
    store = SaveStore(directory)
    return step if step is not None and not store.is_suspect(step) and store.read(step) is not None else None


def used_on(config: RunConfig, loras: Mapping[str, str], trigger: str = "") -> list[dict[str, Any]]:
    """Returns which LoRA belongs to which model file: frozen LoRAs with their strengths, then the run's own at 1.0.

    `loras`: names of its own by expert ("" for one model). `trigger`: words for prompts.
    """
    files = (config.model.base_file, config.model.low_noise_file)
    experts = EXPERTS if config.train.expert == "both" else ("",)
    own = [
        {"lora": loras[expert], "model": file.partition(":")[2], **({"trigger": trigger} if trigger else {})}
        for expert, file in zip(experts, files, strict=False)
        if expert in loras
    ]
    return [*_frozen_loras(config.model), *own] if own else []


def _frozen_loras(plan: ModelPlan) -> list[dict[str, Any]]:
    """Returns the model files of the frozen LoRAs."""
    return [
        {"lora": lora.partition(":")[2], "model": model.partition(":")[2], "strength": strength}
        for under in (lora.in_previews() for lora in plan.loras)
        for lora, strength, model in (
            (under.file, under.strength, plan.base_file),
            (under.low_noise_file, under.low_noise_strength, plan.low_noise_file),
        )
        if lora and model and strength
    ]


def result_of(saved: SavedStep | None, config: RunConfig, variant: str) -> dict[str, Any]:
    """Returns `use` and `template` of the last event: the LoRA files of the newest step, and ComfyUI's graph or "".

    `variant`: the model's name, "" if it was not read.
    """
    if saved is None:
        return {}
    loras = {
        expert: f"{saved.folder.parent.name}/{saved.folder.name}/{file.name}" for expert, file in saved.loras.items()
    }
    return {"use": used_on(config, loras, trigger_phrase(saved.lora_file)), "template": template_called(variant)}
