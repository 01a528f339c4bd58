"""Events to metrics.jsonl, and reading it back: whole, its curves, by line number, or only where it stands."""

from .curves import Curves, eval_losses, read_curves
from .jsonl import JsonlSink, read_metrics
from .pages import MetricsPages, Page, finite, parse_record, whole
from .tail import MetricsTail, read_tail

__all__ = [
    "Curves",
    "JsonlSink",
    "MetricsPages",
    "MetricsTail",
    "Page",
    "eval_losses",
    "finite",
    "parse_record",
    "read_curves",
    "read_metrics",
    "read_tail",
    "whole",
]
