"""Reads a metrics.jsonl whole, record by record: what the readers of the product are compared with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from wan_core.events import Evaluated, StepDone
from wan_core.metrics import whole
from wan_core.metrics.records import parse_record


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Returns every whole line in order of its step; of the lines of one step only the newest.

    A line that is no record, or whose step is no whole number, is left out. A number JSON does not know (NaN) is None.
    """
    steps: dict[int, dict[str, Any]] = {}
    others: list[dict[str, Any]] = []
    for line in path.read_bytes().split(b"\n"):
        record = parse_record(line)
        if record is None or (step := _step_of(record)) is None:
            continue
        if record.get("event") == StepDone.name:
            steps[step] = record
        else:
            others.append(record)
    return sorted([*steps.values(), *others], key=lambda r: r.get("step", 0))


def _step_of(record: dict[str, Any]) -> int | None:
    """Returns the step of a record, 0 for an event without one (the end of a stage), None for one that is no number."""
    if "step" not in record and record.get("event") not in (StepDone.name, Evaluated.name):
        return 0
    return whole(record.get("step"))
