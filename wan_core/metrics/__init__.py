"""Events to metrics.jsonl, and reading it back: its curves, by line number, or only where it stands."""

from __future__ import annotations

from .curves import Curves, eval_losses, read_curves
from .jsonl import JsonlSink
from .pages import MetricsPages, Page, finite, whole
from .tail import MetricsTail, read_tail

__all__ = [
    "Curves",
    "JsonlSink",
    "MetricsPages",
    "MetricsTail",
    "Page",
    "eval_losses",
    "finite",
    "read_curves",
    "read_tail",
    "whole",
]
