"""The report of a plan, as JSON and as text: device and host memory, disk, time, and whether it fits."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from ..accelerator import planned_gpu
from ..checkpoint import WanVariant
from ..errors import ConfigError
from ..files import Roots, size_text
from ..footprint import weights_once_loaded
from ..job.config import read_run
from ..job.open import OpenRun, open_experts
from ..job.partner import pair_of_previews
from ..load import ModelPlan, inspect_model, resolved
from ..lora import LoraConfig
from ..placement import (
    PlacementConfig,
    StepShape,
    devices_of,
    free_memory_here,
    resolve_placement,
    total_bytes,
)
from ..placement.plan import split_blocks
from ..train import TrainConfig, saved_bytes
from .cards import Card, slowest_of
from .cards_of_step import cards_of_step
from .here import counting_partner, in_fullest_process
from .measured_ratios import SECONDS, MeasuredRatios, measured_ratios_of
from .modes import plan_on_cards
from .notes import notes_of, routed_of, routes_offered
from .planning import MemoryPlan, plan_memory
from .presets import plan_preset, preset_data
from .workload import Workload, size_words, workload_of_run
from .world import world_report

_GIB = 1 << 30
_WORDS = {SECONDS: "time of a step"}
"""phase -> its name in sentences, where that differs"""


def report_of(plan: MemoryPlan, card: Card | None = None) -> dict[str, Any]:
    """Returns a plan as JSON data: memory in bytes, and for a known card the seconds of an optimizer step.

    `card`: instead of the card of this machine.
    """
    job, estimate, card = plan.job, plan.estimate, card or plan.card
    routed, of_step = routed_of(plan, card), cards_of_step(plan, card)
    devices = estimate.to_dict()
    for name, needs in devices.items():
        needs["room_bytes"] = plan.room.devices.get(name)
    return {
        "version": 1,
        "variant": job.file.variant.name,
        "compute_dtype": str(job.file.compute_dtype).removeprefix("torch."),
        "size": size_words(job.file.variant, job.step),
        "rank": job.lora.rank,
        "adapter": job.lora.describe(),
        "preview": None if job.preview is None else size_words(job.file.variant, job.preview),
        "tokens": job.step.tokens,
        "measures": estimate.measures.to_dict(),
        "checkpointing_policy": plan.policy,
        "placement": {"mode": job.model.placement.mode, "chosen": job.model.placement.chosen},
        "devices": devices,
        "host": {"bytes": estimate.host, "pinned_bytes": estimate.pinned, "room_bytes": plan.room.host},
        "disk": {"save_bytes": _save_bytes(job), "lora_bytes": job.lora_bytes()},
        "step_seconds": None if card is None else round(plan.seconds(card), 2),
        "card": None if card is None else card.name,
        "cards": None if of_step is None else of_step.to_dict(),
        "faster": plan.faster(),
        "exchange": plan.exchange,
        "own_runs": plan.ratios_followed(),
        "routes": None if routed is None else asdict(routed),
        "notes": notes_of(plan, routed, card),
        "fits": plan.fits,
    }


def plan_sentences(plan: MemoryPlan) -> str:
    """Returns a plan as lines of text: memory of each device by phase, measures, time, verdict."""
    job, estimate, card = plan.job, plan.estimate, plan.card
    lines = [f"{job.file.variant.name}, {size_words(job.file.variant, job.step)}, {job.lora.describe()}"]
    for name, memory in estimate.devices.items():
        phases = ", ".join(f"{phase} {value / _GIB:.1f}" for phase, value in memory.phases.items())
        room = plan.room.devices.get(name)
        free = "" if room is None else f" of {room / _GIB:.1f} GiB free"
        lines.append(f"{name}: {memory.peak / _GIB:.1f} GiB{free} ({phases})")
    lines.append(f"host memory: {estimate.host / _GIB:.1f} GiB, {estimate.pinned / _GIB:.1f} of it pinned")
    lines.append(f"LoRA file: {size_text(job.lora_bytes())} in {job.train.save_dtype}")
    lines += filter(None, (plan.remark(), plan.faster(), plan.exchange))
    if card is not None:
        lines.append(f"about {plan.seconds(card):.1f} s for an optimizer step on a {card.name}")
    if of_step := cards_of_step(plan, card):
        lines.append(of_step.sentence())
    for name, phases in plan.ratios_followed().items():
        said = ", ".join(f"{_WORDS.get(phase, phase)} x{ratio:.2f}" for phase, ratio in phases.items())
        lines.append(f"{name}: corrected by measurements of earlier runs of this model on this card ({said})")
    routed = routed_of(plan, card)
    if routed is not None:
        lines.append(f"tokens by layer: {routed.drawn()}")
    elif offered := routes_offered(job):
        lines.append(offered)
    return "\n".join([*lines, *notes_of(plan, routed, card), plan.verdict()])


def plan_run(run: OpenRun) -> MemoryPlan:
    """Returns the plan of a run of one model on this machine."""
    return plan_memory(*in_fullest_process(workload_of_run(run), ask_driver=True))


def report_run(directory: Path, roots: Roots) -> dict[str, Any]:
    """Returns the report of `wan_core plan RUN`: `report_of`, the run's name, bytes of its saves, and the verdict.

    Experts of a pair take turns on the devices, so the larger one counts; a partner counts in previews. `resting_bytes`
    are the weights of the other expert, which is offloaded if host memory has room, else read again.
    """
    config = read_run(directory)
    runs = open_experts(directory, roots, config)
    plans = [plan_run(run) for run in runs]
    pair = pair_of_previews(runs[0], lambda _: None) if len(runs) == 1 else ()
    plans[0], no_partner = counting_partner(plans[0], next((run for run in pair if not run.trained), None))
    plan = max(plans, key=lambda one: max(memory.peak for memory in one.estimate.devices.values()))
    report = report_of(plan)
    refusals = [one.verdict() for one in plans if not one.fits] + _beyond_total(report)
    if len(runs) > 1 or (pair and not no_partner):
        report["host"]["resting_bytes"] = max(weights_once_loaded(one.config.model, one.file) for one in pair or runs)
    save_bytes, free = sum(_save_bytes(one.job) for one in plans), shutil.disk_usage(directory).free
    saves = -(-config.train.steps // config.train.save_every_n_steps)
    report["disk"] |= {"save_bytes": save_bytes, "all_saves_bytes": saves * save_bytes, "free_bytes": free}
    if save_bytes > free:
        refusals.append(
            f"A save takes {save_bytes / _GIB:.1f} GiB, and the disk of the run has {free / _GIB:.1f} GiB free."
        )
    return {**report, "run_name": config.run_name, **_verdict(plan, refusals)}


def report_settings(
    model: ModelPlan,
    roots: Roots,
    lora: LoraConfig,
    train: TrainConfig,
    size: str,
    cards: Sequence[float],
    mode: str = "split blocks",
    *,
    world: int = 0,
    clips: int = 0,
    preset: str = "",
) -> dict[str, Any]:
    """Returns the report of a job without a run, for clips of `size` (WIDTHxHEIGHTxFRAMES).

    `cards`: GiB of each card to plan for; none: the cards of this machine, corrected by ratios of earlier runs where
    `roots` name the folder of runs. `mode`: how several cards share the job. `world`: also plan a mesh of this many
    ranks with the first card, for `clips` a step (0: one for each rank). `preset`: name of a preset, whose clips keep
    the aspect ratio of `size`; the report then has its `settings` by widget name, and the `seconds` of the run.
    """
    file = inspect_model(model, roots)
    if not cards:
        model = resolved(model, (file,))
    else:
        if file.compute_dtype == torch.float32 and model.base_precision == "as in file":
            model = replace(model, base_precision="bf16")  # as `load.resolved` does on a machine with a GPU
        model = model.with_placement(PlacementConfig(devices="cpu"))  # ignores the GPUs of this machine
    file = inspect_model(model, roots)
    step = _step_of(size, train.batch_size, file.variant)
    job = Workload(
        model=model,
        roots=roots,
        file=file,
        lora=lora,
        train=train,
        step=step,
        preview=replace(step, batch_size=1) if train.preview_every_n_steps else None,
        measured_ratios=MeasuredRatios() if cards else measured_ratios_of(roots),
    )
    if preset:
        plan = plan_preset(preset, job, cards=cards, mode=mode)
        card = slowest_of(cards) if cards else plan.card
        report = {**report_of(plan, card), "preset": preset, **preset_data(plan, card)}
    elif cards:
        plan = plan_on_cards(job, cards, mode)
        report = report_of(plan, slowest_of(cards))
        if world:
            one = replace(job, placement=split_blocks([planned_gpu(0)], file.variant.shape.num_layers, "auto"))
            report["world"] = world_report(one, cards[0], world, clips or world)
    else:
        layers = file.variant.shape.num_layers
        room = free_memory_here(devices_of(model.placement, layers), ask_driver=True)
        plan = plan_memory(replace(job, placement=resolve_placement(model.placement, layers)), room)
        report = report_of(plan)
    refusals = ([] if plan.fits else [plan.verdict()]) + ([] if cards else _beyond_total(report))
    return {**report, **_verdict(plan, refusals)}


def _verdict(plan: MemoryPlan, refusals: list[str]) -> dict[str, Any]:
    return {"fits": not refusals, "verdict": refusals[0] if refusals else plan.verdict()}


def _save_bytes(job: Workload) -> int:
    return saved_bytes(sum(job.shape().adapter_values.values()), job.train)


def _beyond_total(report: dict[str, Any]) -> list[str]:
    """Adds the total memory of each device to `report`; returns a sentence for each device that is too small."""
    said: list[str] = []
    for name, needs in report["devices"].items():
        needed, total = needs["peak_bytes"], total_bytes(torch.device(name))
        needs["total_bytes"] = total
        if needed > total:
            said.append(f"It needs {needed / _GIB:.1f} GiB on {name}, which has {total / _GIB:.1f} GiB in all.")
    return said


def _step_of(size: str, batch_size: int, variant: WanVariant) -> StepShape:
    space = variant.latents
    try:
        width, height, frames = (int(part) for part in size.lower().split("x"))
    except ValueError:
        raise ConfigError(f'size "{size[:40]}" is not WIDTHxHEIGHTxFRAMES, such as 832x480x33.') from None
    edge = 2 * space.spatial_stride
    if width < edge or height < edge or width % edge or height % edge or frames < 1 or frames % 4 != 1:
        raise ConfigError(f"size {size}: this model needs width and height in multiples of {edge}, and 4n+1 frames.")
    latent = (variant.latent_frames(frames), height // space.spatial_stride, width // space.spatial_stride)
    return StepShape(
        batch_size=batch_size,
        latent_frames=latent[0],
        latent_height=latent[1],
        latent_width=latent[2],
        context=variant.behind(latent),
    )
