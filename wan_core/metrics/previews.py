"""Finds broken previews of a run: their measures are compared with those of the preview before training."""

from __future__ import annotations

from pathlib import Path

from ..events import SampleReady
from .records import finite, records_of, whole

Measures = dict[str, float]
_LIMITS = {
    "empty": (0.5, 1.0, "frames of one colour"),
    "flicker": (0.02, 4.0, "flicker"),
    "grid": (0.5, 3.0, "a grid"),
}
"""a preview is broken where a measure lies above that of the base by so much, and is so many times as large

Likeness (`ssim`) has no limit: a run that learns gets as unlike as one that over-fits (docs/training_run.md).
"""


def broken_previews(path: Path) -> dict[int, str]:
    """Returns step -> fault with its figure, for each step of a metrics.jsonl most of whose previews look broken.

    A measure is compared with that of the same prompt before training: a base that flickers makes no step a bad one. A
    run without measures, or without previews before training, has no broken ones.
    """
    clips: dict[tuple[int, str], Measures] = {}
    for record in records_of(path, (SampleReady.name,)):
        step, measures = whole(record.get("step")), record.get("measures")
        if step is not None and isinstance(measures, dict):
            known = {str(name): number for name, value in measures.items() if (number := finite(value)) is not None}
            clips[step, str(record.get("sample_id", "")).rpartition("_p")[2]] = known
    verdicts: dict[int, list[str]] = {}
    for (step, prompt), measures in clips.items():
        if step and (base := clips.get((0, prompt))) is not None:
            verdicts.setdefault(step, []).append(_fault(measures, base))
    return {step: max(faults) for step, faults in verdicts.items() if 2 * sum(map(bool, faults)) > len(faults)}


def _fault(measures: Measures, base: Measures) -> str:
    """Returns the fault of a clip compared with its base; "" for none."""
    for name, (more, times, words) in _LIMITS.items():
        if name in measures and name in base:
            found, before = measures[name], base[name]
            if found - before >= more and found >= times * before:
                return f"{words}: {found:.2f}, before training {before:.2f}"
    return ""
