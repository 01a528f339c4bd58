"""Suggests a saved step of a run, from the run's files."""

from __future__ import annotations

from pathlib import Path

from ..events import Suggested
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
from ..train import SaveStore

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
