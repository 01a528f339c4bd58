"""The outcome of a run: the saved step that it suggests, and the models and the graph that its LoRAs go into."""

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

METRICS = "metrics.jsonl"


def suggestion_of(directory: Path, *, nothing_to_learn: str = "") -> Suggestion:
    """Returns what the figures of the run in `directory` suggest now; `nothing_to_learn`: why its clips say nothing."""
    store, metrics = SaveStore(directory), directory / METRICS
    saved = [step for step in store.steps() if not store.is_suspect(step)]
    experts, broken = read_experts(metrics), broken_previews(metrics)
    if set(experts) <= {""}:
        curve = read_loss_curve(metrics)
        return suggest(experts.get("", []), saved, curve=curve, broken=broken, nothing_to_learn=nothing_to_learn)
    curves = {name: read_loss_curve(metrics, name) for name in experts}
    return suggest_of_pair(experts, saved, curves=curves, broken=broken, nothing_to_learn=nothing_to_learn)


def steps_worth_keeping(directory: Path) -> set[int]:
    """Returns the saved steps that may yet be the best: the one with the lowest evaluation loss, and the one suggested.

    A loss that is lowest counts although it may be noise: what is removed cannot be suggested later.
    """
    saved = set(SaveStore(directory).steps())
    measured = [point for point in read_measured(directory / METRICS) if point.step in saved]
    settled = [point for point in measured if point.settled]
    lowest = {min(points, key=lambda point: point.loss).step for points in (measured, settled) if points}
    told = [whole(record.get("best")) for record in records_of(directory / METRICS, (Suggested.name,))]
    return lowest | ({told[-1]} if told and told[-1] is not None else set())


def suggested_step(directory: Path) -> int | None:
    """Returns the saved step that the run suggests, None for none: as its page says, or worked out now where an earlier
    version trained it. A step that does not verify is not suggested.
    """
    told = [record.get("best") for record in records_of(directory / METRICS, (Suggested.name,))]
    step = whole(told[-1]) if told else suggestion_of(directory).step
    store = SaveStore(directory)
    return step if step is not None and not store.is_suspect(step) and store.read(step) is not None else None


def used_on(config: RunConfig, loras: Mapping[str, str], trigger: str = "") -> list[dict[str, Any]]:
    """Returns which LoRA goes on which model file. Those it was trained over come first, with the strengths they had;
    its own is used at 1.0.

    `loras`: the names of its own, by expert, or "" where one model is trained. `trigger`: the words that
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
