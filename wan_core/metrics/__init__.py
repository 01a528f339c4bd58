"""Events to metrics.jsonl, and reading it back: whole, by line number, or only where it stands."""

from .jsonl import JsonlSink, read_metrics
from .numbers import finite, whole
from .pages import MetricsPages, Page, parse_record
from .tail import MetricsTail, eval_losses, read_tail

__all__ = [
    "JsonlSink",
    "MetricsPages",
    "MetricsTail",
    "Page",
    "eval_losses",
    "finite",
    "parse_record",
    "read_metrics",
    "read_tail",
    "whole",
]
