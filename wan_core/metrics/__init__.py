"""Events to metrics.jsonl, and reading it back: its curves, by line number, or only where it stands."""

from __future__ import annotations

from .best import Suggestion, suggest, suggest_of_pair
from .curves import Curves, eval_losses, read_curves, records_of
from .health import HealthWatch
from .history import MetricsHistory
from .jsonl import JsonlSink
from .measured import read_experts, read_measured
from .pages import LINES_PER_PAGE, finite, whole
from .previews import broken_previews
from .tail import MetricsTail, read_tail

__all__ = [
    "LINES_PER_PAGE",
    "Curves",
    "HealthWatch",
    "JsonlSink",
    "MetricsHistory",
    "MetricsTail",
    "Suggestion",
    "broken_previews",
    "eval_losses",
    "finite",
    "read_curves",
    "read_experts",
    "read_measured",
    "read_tail",
    "records_of",
    "suggest",
    "suggest_of_pair",
    "whole",
]
