"""A run as the files of its folder say it, and the marks by which those files are known again."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...wan_core.checkpoint import read_header
from ...wan_core.errors import WanTrainerError
from ...wan_core.files import confine, file_mark
from ...wan_core.metrics import MetricsTail, finite, read_measured, read_tail, whole
from ...wan_core.run import STATUS_FILES, RunConfig, read_run, read_status
from ...wan_core.train import SaveStore
from ...wan_core.words import sentences_back, shortened
from ..runs.publish import lora_experts
from ..runs.scrub import scrubbed
from .samples import newest_preview

Marks = tuple[tuple[int, ...], ...]

_TOLD = ("run.json", STATUS_FILES[0], "metrics.jsonl", "saves", "samples/index.json", STATUS_FILES[1])
"""what a run is told from: while none of them changes, neither does what is told"""
_LARGE = 8 << 20


@dataclass(frozen=True)
class SeenRun:
    """A run as its files say, without paths and secrets."""

    state: str
    """as status.json says it"""
    step: int
    """the last committed one"""
    reason: str
    updated: float
    """unix seconds"""
    steps: int
    expert: str
    experts: tuple[str, ...]
    """whose LoRAs are published under names of their own"""
    variant: str
    """empty where run.json leaves it to the file"""
    saved_variant: str
    """as the newest saved LoRA names it, where run.json does not"""
    last_step: int | None
    """the newest in metrics.jsonl"""
    loss: float | None
    seconds_per_step: float | None
    hours_left: float | None
    """seconds of the hours that the run may take, after its newest step"""
    beside_left: float
    """seconds that its saves, evaluations and previews still to come will take"""
    eval_loss: float | None
    """null also where the newest evaluation gave no finite number"""
    eval_step: int | None
    eval_held_out: bool | None
    eval_expert: str
    eval_best: float | None
    """the lowest so far"""
    eval_best_step: int | None
    best: int | None
    """the saved step that is suggested"""
    best_why: str
    memory: dict[str, dict[str, Any]]
    """bytes by device, as the newest step says"""
    saves: tuple[int, ...]
    preview: str | None
    """id of the newest preview"""
    settings: dict[str, str]
    """of training and adapter, the model and the data, as JSON texts"""


def marks_of(directory: Path) -> Marks:
    """Returns a mark of each file that a run is told from; it changes with the file."""
    return tuple(_mark(directory, name) for name in _TOLD)


def _mark(directory: Path, name: str) -> tuple[int, ...]:
    """Returns a mark that changes with the file; empty where there is none."""
    try:
        return tuple(file_mark(f"{directory}/{name}"))
    except OSError:
        return ()


def read_seen(directory: Path, marks: Marks) -> SeenRun:
    """Returns what the files say, which had these marks just before. Raises WanTrainerError for no run."""
    config, status, steps = read_run(directory), read_status(directory), SaveStore(directory).steps()
    metrics = directory / "metrics.jsonl"
    tail = read_tail(metrics)
    suggested = sentences_back(tail.suggested or {})
    lowest, is_auto = _lowest(metrics, tail, marks[2]), config.model.variant == "auto"
    return SeenRun(
        state=status.state,
        step=status.step,
        reason=scrubbed(status.reason),
        updated=max((mark[1] / 1e9 for mark in marks[:3] if mark), default=0.0),
        steps=config.train.steps,
        expert=config.train.expert,
        experts=lora_experts(config.train),
        variant="" if is_auto else config.model.variant,
        saved_variant=_variant_of_saves(directory, steps) if is_auto else "",
        last_step=tail.reached,
        loss=finite(tail.step.get("loss")),
        seconds_per_step=tail.seconds_per_step,
        hours_left=finite(tail.step.get("seconds_left")),
        beside_left=finite(tail.step.get("beside_left")) or 0.0,
        eval_loss=tail.eval_loss,
        eval_step=tail.eval_step,
        eval_held_out=tail.eval_held_out,
        eval_expert=tail.eval_expert[:40],
        eval_best=lowest[1] if lowest else None,
        eval_best_step=lowest[0] if lowest else None,
        best=whole(suggested.get("best")),
        best_why=scrubbed(shortened(why, 1000)) if isinstance(why := suggested.get("why"), str) else "",
        memory=_memory(tail),
        saves=tuple(steps),
        preview=newest_preview(directory),
        settings=_settings(config),
    )


def _settings(config: RunConfig) -> dict[str, str]:
    """Every setting by which runs can be told apart. A dataset has no name in run.json: its size and digest tell it."""
    data = f"{config.data.num_items} #{config.data.fingerprint[:6]}"
    model = config.model.base_file.partition(":")[2] or config.model.base_file
    settings = {**config.lora.to_dict(), **config.train.to_dict(), "data": data, "model": model}
    return {name: json.dumps(value) for name, value in scrubbed(settings).items()}


def _lowest(metrics: Path, tail: MetricsTail, mark: tuple[int, ...]) -> tuple[int, float] | None:
    """Returns (step, loss) of the lowest evaluation; of both experts the mean at steps that hold both as measured.

    A long file is read again for it only when it has a new evaluation.
    """
    if tail.eval_step is None:
        return None
    is_long = bool(mark) and mark[0] > _LARGE  # it may have come after it was looked for
    return _lowest_of_long(metrics, mark[2], tail.eval_step, tail.eval_loss) if is_long else _lowest_in(metrics)


@functools.lru_cache(maxsize=64)
def _lowest_of_long(
    metrics: Path, _inode: int, _newest_step: int, _newest_loss: float | None
) -> tuple[int, float] | None:
    return _lowest_in(metrics)


def _lowest_in(metrics: Path) -> tuple[int, float] | None:
    best = min((one for one in read_measured(metrics) if one.settled), key=lambda one: one.loss, default=None)
    return None if best is None else (best.step, best.loss)


def _variant_of_saves(directory: Path, steps: list[int]) -> str:
    """Returns the variant that the newest saved LoRA names."""
    for step in reversed(steps):
        try:
            lora = confine(directory, f"saves/step-{step:06d}/lora.safetensors", "LoRA")
            return str(read_header(lora).metadata.get("wan_trainer.variant", ""))
        except (WanTrainerError, OSError):
            continue
    return ""


def _memory(tail: MetricsTail) -> dict[str, dict[str, Any]]:
    known = tail.step.get("memory")
    devices = known.items() if isinstance(known, dict) else ()
    return {str(device): values for device, values in devices if isinstance(values, dict)}
