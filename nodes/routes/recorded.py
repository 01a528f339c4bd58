"""Caches the records of runs while their files are unchanged; a cached record costs a `stat` of each file."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...wan_core.checkpoint import read_header
from ...wan_core.errors import WanTrainerError
from ...wan_core.files import confine, mark_of
from ...wan_core.job import STATUS_FILES, RunConfig, read_run, read_status
from ...wan_core.metrics import MetricsTail, finite, read_measured, read_tail, whole
from ...wan_core.train import SaveStore
from ...wan_core.words import sentences_back, shortened
from ..runs.publish import lora_experts
from ..runs.samples import newest_preview
from ..runs.scrub import scrubbed

Data = dict[str, Any]
Marks = tuple[tuple[int, ...], ...]

DAMAGED = (ValueError, TypeError, AttributeError, ArithmeticError, RecursionError, KeyError)
"""errors of reading a file whose JSON has another structure than ours"""
_SOURCES = ("run.json", STATUS_FILES[0], "metrics.jsonl", "saves", "samples/index.json", STATUS_FILES[1])
"""the files of a record, which is valid until one of them changes"""
_MOST_RUNS = 8192
_LONGEST_WORDS, _LONGEST_NAME = 1000, 40


@dataclass(frozen=True)
class Recorded:
    """A run as recorded in its files, without paths and secrets."""

    directory: Path
    summary: Data
    """SUMMARY of the routes by the files: `state` of status.json, `step` of the last saved step"""
    tail: MetricsTail
    saves: tuple[int, ...]
    experts: tuple[str, ...]
    """the experts in the names of its published LoRAs"""
    settings: dict[str, str]
    """settings of training, adapter, model and data, as JSON texts"""


_KNOWN: dict[Path, tuple[Marks, Recorded]] = {}
"""the records of this process"""
_LOCK = threading.Lock()


def recorded(directory: Path) -> Recorded:
    """Returns the record of a run, from its current files; kept in memory until they change.

    Raises WanTrainerError for no run, and an error of DAMAGED for a run whose files are damaged.
    """
    # Marks are taken before reading, so a file that changes during the read is read again by the next request.
    marks = tuple(tuple(mark_of(f"{directory}/{name}") or ()) for name in _SOURCES)
    known = _KNOWN.get(directory)
    if known is not None and known[0] == marks:
        return known[1]
    found = _read(directory, marks)  # without the lock, so that other requests can read other runs
    with _LOCK:
        _KNOWN[directory] = marks, found
        if len(_KNOWN) > _MOST_RUNS:
            del _KNOWN[next(iter(_KNOWN))]
    return found


def _read(directory: Path, marks: Marks) -> Recorded:
    """Returns the record of a run with these `marks`. Raises WanTrainerError for no run."""
    config, status, steps = read_run(directory), read_status(directory), SaveStore(directory).steps()
    metrics = directory / "metrics.jsonl"
    tail = read_tail(metrics)
    suggested = sentences_back(tail.suggested or {})
    why = suggested.get("why")
    settled = (measured for measured in read_measured(metrics) if measured.settled)
    lowest = min(settled, key=lambda measured: measured.loss, default=None)
    variant = config.model.variant
    summary = {
        "id": directory.name,
        "state": status.state,
        "step": status.step,
        "steps": config.train.steps,
        "reached": tail.reached,
        "reason": scrubbed(status.reason),
        "updated": max((mark[1] / 1e9 for mark in marks[:3] if mark), default=0.0),
        "loss": finite(tail.step.get("loss")),
        "eval_loss": tail.eval_loss,
        "eval_step": tail.eval_step,
        "eval_held_out": tail.eval_held_out,
        "eval_expert": tail.eval_expert[:_LONGEST_NAME],
        "eval_best": lowest.loss if lowest else None,
        "eval_best_step": lowest.step if lowest else None,
        "best": whole(suggested.get("best")),
        "best_why": scrubbed(shortened(why, _LONGEST_WORDS)) if isinstance(why, str) else "",
        "seconds_per_step": tail.seconds_per_step,
        "expert": config.train.expert,
        "variant": _variant_of_saves(directory, steps) if variant == "auto" else variant,
        "preview": newest_preview(directory),
        "memory": _memory(tail),
    }
    return Recorded(directory, summary, tail, tuple(steps), lora_experts(config.train), _settings(config))


def _settings(config: RunConfig) -> dict[str, str]:
    """Returns every setting in which runs can differ. run.json has no name of a dataset, only its size and digest."""
    data = f"{config.data.num_items} #{config.data.fingerprint[:6]}"
    model = config.model.base_file.partition(":")[2] or config.model.base_file
    settings = {**config.lora.to_dict(), **config.train.to_dict(), "data": data, "model": model}
    return {name: json.dumps(value) for name, value in scrubbed(settings).items()}


def _variant_of_saves(directory: Path, steps: list[int]) -> str:
    """Returns the variant in the metadata of the newest saved LoRA; empty for none."""
    for step in reversed(steps):
        try:
            lora = confine(directory, f"saves/step-{step:06d}/lora.safetensors", "LoRA")
            return str(read_header(lora).metadata.get("wan_trainer.variant", ""))
        except (WanTrainerError, OSError):
            continue
    return ""


def _memory(tail: MetricsTail) -> dict[str, Data]:
    """Returns the bytes of each device at the newest step."""
    known = tail.step.get("memory")
    return {
        scrubbed(str(device))[:_LONGEST_NAME]: {
            name: size if isinstance(size := values.get(name), int) else None
            for name in ("now", "peak", "predicted", "total")
        }
        for device, values in (known.items() if isinstance(known, dict) else ())
        if isinstance(values, dict)
    }
