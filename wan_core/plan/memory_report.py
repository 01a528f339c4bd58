"""The needs of a run, before anything is loaded: memory of devices and computer, disk, time, and whether it fits."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ..abilities import abilities_of
from ..cache import CacheSet
from ..errors import ConfigError
from ..files import Roots, size_text
from ..footprint import weights_once_loaded
from ..job.config import read_run
from ..job.open import OpenRun, open_experts
from ..job.remarks import notes_on_cards, remarks_on_cards
from ..load import ModelPlan, WanFile, bytes_beside, inspect_model, settled
from ..lora import FrozenLora, LoraConfig
from ..model import LatentSpace
from ..placement import (
    Placement,
    PlacementConfig,
    Room,
    StepShape,
    can_share,
    processes_by_room,
    resolve_placement,
    room_here,
    room_of_cards,
    total_bytes,
)
from ..placement.cards import card_limit
from ..placement.plan import split_blocks
from ..sampler import SampleConfig
from ..train import UNKNOWN_CLASS, TrainConfig, largest_preview_shape, largest_step, saved_bytes
from .job import Job, size_words
from .own_runs import SECONDS, Measured, OwnRuns, own_runs_of
from .partner import counting_partner, pair_of_previews
from .planning import MemoryPlan, plan_memory, rest_alike
from .preview_size import with_fitting_preview
from .step_time import Card, card_named, card_of_size, step_seconds, step_tflops, unknown_card

_GIB = 1 << 30
_WORDS = {SECONDS: "time of a step"}
"""what phases are called in a sentence, where that is not their name"""


def plan_run(directory: Path, roots: Roots) -> dict[str, Any]:
    """Returns the report of `wan_core plan RUN`: what `report_of` holds, the run's name, what its saves take, and
    the verdict in a sentence.

    Of both experts of a pair the larger one counts on the devices, since they take turns there; one that only renders
    counts in previews. `resting_bytes` are the weights of the other one: they lie in host memory meanwhile where they
    fit beside the rest, or are read again.
    """
    config = read_run(directory)
    runs = open_experts(directory, roots, config)
    plans = [plan_memory(*_in_the_fullest_process(job_of_run(run), ask_driver=True)) for run in runs]
    pair = pair_of_previews(runs[0], lambda _: None) if len(runs) == 1 else ()
    plans[0], no_partner = counting_partner(plans[0], next((run for run in pair if not run.trained), None))
    plan = max(plans, key=lambda one: max(memory.peak for memory in one.estimate.devices.values()))
    report = report_of(plan, card_of(torch.device(next(iter(plan.estimate.devices))), plan.job))
    said = [one.verdict() for one in plans if not one.fits] + _beyond_the_whole(report)
    if len(runs) > 1 or (pair and not no_partner):
        report["host"]["resting_bytes"] = max(weights_once_loaded(one.config.model, one.file) for one in pair or runs)
    save_bytes = sum(report_of(one, None)["disk"]["save_bytes"] for one in plans)
    saves = -(-config.train.steps // config.train.save_every_n_steps)
    free = shutil.disk_usage(directory).free
    report["disk"] |= {"save_bytes": save_bytes, "all_saves_bytes": saves * save_bytes, "free_bytes": free}
    if save_bytes > free:
        said.append(
            f"A save takes {save_bytes / _GIB:.1f} GiB, and the disk of the run has {free / _GIB:.1f} GiB free."
        )
    verdict = said[0] if said else plan.verdict()
    return {**report, "run_name": config.run_name, "fits": not said, "verdict": verdict}


def plan_settings(
    model: ModelPlan, roots: Roots, lora: LoraConfig, train: TrainConfig, size: str, cards: Sequence[float]
) -> dict[str, Any]:
    """Returns the report of a job that never ran: of clips of `size` (WIDTHxHEIGHTxFRAMES).

    `cards`: GiB of each card it is planned for, several for a split of the blocks, with the time of the slowest; none:
    those of this machine. The plan for these follows what runs took on them, where `roots` name the folder of runs.
    """
    file = inspect_model(model, roots)
    if not cards:
        model = settled(model, (file,))
    elif file.compute_dtype == torch.float32 and model.base_precision == "as in file":
        model = replace(model, base_precision="bf16")  # as `load.settled` has it where there is a GPU
    if cards:  # of this machine none is meant
        model = model.with_placement(PlacementConfig(devices="cpu"))
    file = inspect_model(model, roots)
    step = _step_of(size, train.batch_size, file.variant.latents)
    layers = file.variant.shape.num_layers
    if cards:
        devices = [torch.device("cuda", index) for index in range(len(cards))]
        placement = split_blocks(devices, layers, "auto", cards)
        room, card = room_of_cards(cards), min(map(card_of_size, cards), key=lambda one: one.bf16)
    else:
        placement = resolve_placement(model.placement, layers)
        room, card = room_here(placement.devices, ask_driver=True), None
    job = Job(
        model=model,
        roots=roots,
        file=file,
        lora=lora,
        train=train,
        step=step,
        preview=replace(step, batch_size=1) if train.preview_every_n_steps else None,
        placement=placement,
        own_runs=OwnRuns() if cards else own_runs_of(roots),
    )
    plan = plan_memory(job, room)
    report = report_of(plan, card if cards else card_of(placement.first, job))
    beyond = [] if cards else _beyond_the_whole(report)
    verdict = beyond[0] if plan.fits and beyond else plan.verdict()
    return {**report, "fits": plan.fits and not beyond, "verdict": verdict}


def _beyond_the_whole(report: dict[str, Any]) -> list[str]:
    """Notes in `report` what each device of this machine has in all; returns a sentence for each that needs more."""
    said: list[str] = []
    for name, needs in report["devices"].items():
        needed, total = needs["peak_bytes"], total_bytes(torch.device(name))
        needs["total_bytes"] = total
        if needed > total:
            said.append(f"It needs {needed / _GIB:.1f} GiB on {name}, which has {total / _GIB:.1f} GiB in all.")
    return said


def job_of_run(run: OpenRun, placement: Placement | None = None) -> Job:
    """Returns the job that a run's directory says; `placement` is that of one of several processes."""
    config = run.config
    job = job_on_clips(
        config.model, run.roots, config.lora, config.train, run.cache_set, preview=config.preview, file=run.file
    )
    return replace(job, placement=placement)


def job_on_clips(
    model: ModelPlan,
    roots: Roots,
    lora: LoraConfig,
    train: TrainConfig,
    clips: CacheSet,
    *,
    preview: SampleConfig | None = None,
    file: WanFile | None = None,
) -> Job:
    """Returns the job of training `model` on `clips`, which need not be encoded yet; `file` where it was inspected."""
    file = file or inspect_model(model, roots)
    previewed, beside = None, 0
    if train.preview_every_n_steps:
        beside = beside_preview(model, roots, file, train.expert, (preview or SampleConfig()).loras)
        _, frames, height, width = largest_preview_shape(clips, preview or SampleConfig())
        previewed = StepShape(batch_size=1, latent_frames=frames, latent_height=height, latent_width=width)
    return Job(
        model=model,
        roots=roots,
        file=file,
        lora=lora,
        train=train,
        step=largest_step(clips, train.batch_size),
        prior_share=clips.prior_share,
        preview=previewed,
        beside_preview=beside,
        own_runs=own_runs_of(roots),
    )


def beside_preview(model: ModelPlan, roots: Roots, file: WanFile, expert: str, loras: Sequence[FrozenLora]) -> int:
    """Returns the bytes of LoRAs that act in previews of a run of one model, of a pair that of `expert`.

    Raises what a LoRA of another model is refused with.
    """
    here = [lora.on_model(expert, pair=False) for lora in loras]
    return sum(bytes_beside(model, roots, file.variant, file.compute_dtype, here).values())


def plan_here(job: Job, host_freed: int = 0) -> MemoryPlan | None:
    """Returns the plan of a job for the devices of this machine; None where no device has an end, as the CPU.

    `host_freed`: bytes of host memory that this process frees before the job starts.
    Where each card trains a copy, it is that of the process with the least room.
    Cards that this process does not use are taken for empty: asking would open a CUDA context on them, and keep it.
    """
    job, room = _in_the_fullest_process(job, ask_driver=False)
    if not room.devices:
        return None
    if room.host is not None:
        room = replace(room, host=room.host + host_freed // job.model.placement.ranks)
    return plan_memory(with_fitting_preview(job, room) if job.preview_gives_way else job, room)


def _in_the_fullest_process(job: Job, *, ask_driver: bool) -> tuple[Job, Room]:
    """Returns the job where it has the least room on this machine, and that room.

    Its processes share the weights that rest in host memory, where as many blocks rest for the one with the most room.
    """
    asked, layers = job.model.placement, job.file.variant.shape.num_layers
    processes = processes_by_room(asked, layers, ask_driver=ask_driver)
    (placement, room), (roomiest, most) = processes[0], processes[-1]
    first = placement == resolve_placement(asked, layers)
    job = job if first else replace(job, placement=placement)
    if len(processes) == 1 or not room.devices or not can_share():
        return job, room
    shared = replace(job, sharers=len(processes))
    if [*room.devices.values()] == [*most.devices.values()]:
        return shared, room
    plans = plan_memory(shared, room), plan_memory(replace(shared, placement=roomiest), most)
    return (shared if rest_alike(plan.measures for plan in plans) else job), room


def plan_sentences(plan: MemoryPlan) -> str:
    """Returns a plan as lines of text for people: what each device takes in each phase, measures, time, verdict."""
    job, estimate = plan.job, plan.estimate
    lines = [f"{job.file.variant.name}, {size_words(job.file.variant, job.step)}, {job.lora.describe()}"]
    for name, memory in estimate.devices.items():
        phases = ", ".join(f"{phase} {value / _GIB:.1f}" for phase, value in memory.phases.items())
        room = plan.room.devices.get(name)
        free = "" if room is None else f" of {room / _GIB:.1f} GiB free"
        lines.append(f"{name}: {memory.peak / _GIB:.1f} GiB{free} ({phases})")
    lines.append(f"host memory: {estimate.host / _GIB:.1f} GiB, {estimate.pinned / _GIB:.1f} of it pinned")
    lines.append(f"LoRA file: {size_text(job.lora_bytes())} in {job.train.save_dtype}")
    if remark := plan.remark():
        lines.append(remark)
    card = card_of(torch.device(next(iter(estimate.devices))), job)
    if card is not None:
        lines.append(f"about {seconds_of(plan, card):.1f} s for an optimizer step on a {card.name}")
    for name, phases in plan.own_runs().items():
        said = ", ".join(f"{_WORDS.get(phase, phase)} x{ratio:.2f}" for phase, ratio in phases.items())
        lines.append(f"{name}: corrected by what runs of this model took on this card ({said})")
    lines += notes_of(job)
    lines.append(plan.verdict())
    return "\n".join(lines)


def report_of(plan: MemoryPlan, card: Card | None) -> dict[str, Any]:
    """Returns a plan as JSON data, version first; bytes, seconds of an optimizer step where the card is known."""
    job, estimate = plan.job, plan.estimate
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
        "devices": devices,
        "host": {"bytes": estimate.host, "pinned_bytes": estimate.pinned, "room_bytes": plan.room.host},
        "disk": {
            "save_bytes": saved_bytes(sum(job.shape().adapter_values.values()), job.train),
            "lora_bytes": job.lora_bytes(),
        },
        "step_seconds": None if card is None else round(seconds_of(plan, card), 2),
        "card": None if card is None else card.name,
        "own_runs": plan.own_runs(),
        "notes": notes_of(job),
        "fits": plan.fits,
    }


def notes_of(job: Job) -> list[str]:
    """Returns what its cards do without, and what a plan does not know, a sentence each."""
    compute = job.file.compute_dtype
    on_cards = [*remarks_on_cards(job.model, compute), *notes_on_cards(job.model, compute)]
    return [*on_cards, *([UNKNOWN_CLASS] if job.train.optimizer == "custom" else [])]


def _step_of(size: str, batch_size: int, space: LatentSpace) -> StepShape:
    try:
        width, height, frames = (int(part) for part in size.lower().split("x"))
    except ValueError:
        raise ConfigError(f'size "{size[:40]}" is not WIDTHxHEIGHTxFRAMES, such as 832x480x33.') from None
    edge = 2 * space.spatial_stride
    if width < edge or height < edge or width % edge or height % edge or frames < 1 or frames % 4 != 1:
        raise ConfigError(f"size {size}: this model needs width and height in multiples of {edge}, and 4n+1 frames.")
    return StepShape(
        batch_size=batch_size,
        latent_frames=space.latent_frames(frames),
        latent_height=height // space.spatial_stride,
        latent_width=width // space.spatial_stride,
    )


def seconds_of(plan: MemoryPlan, card: Card) -> float:
    """Returns the seconds of an optimizer step on `card`, as the runs on this machine say where there were any."""
    job = plan.job
    micro_batches = job.train.gradient_accumulation_steps
    seconds = step_seconds(
        job.shape(), job.step, plan.estimate, card, micro_batches=micro_batches, prior_share=job.prior_share
    )
    return seconds * (job.ratio(next(iter(plan.estimate.devices)), SECONDS) or 1.0)


def measured_against(plan: MemoryPlan) -> Measured:
    """Returns what hears how a run of this plan goes, and compares. Never of the CPU: a plan counts other things."""
    job, estimate = plan.job, plan.estimate
    first = torch.device(next(iter(estimate.devices)))
    card = None if first.type == "cpu" else card_of(first) or unknown_card(str(first))
    return Measured(
        variant=job.file.variant.name,
        scheme=job.scheme,
        predicted={name: memory.phases for name, memory in estimate.devices.items() if name != "cpu"},
        followed=plan.own_runs(),
        tflops=None if card is None else step_tflops(job.shape(), job.step, estimate, card, job.prior_share),
    )


def card_of(device: torch.device, job: Job | None = None) -> Card | None:
    """Returns the kind of GPU a device is, as far as it is known; where the CPU plays a card, one of that size.

    A card that is in no table is known by what runs such as `job` reached on it.
    """
    if device.type == "cuda":
        name = abilities_of(device).name
        known = card_named(name)
        return unknown_card(name) if known is None and job is not None and job.ratio(str(device), SECONDS) else known
    limit = card_limit()
    return None if limit is None else card_of_size(limit)
