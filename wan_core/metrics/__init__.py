"""Events to metrics.jsonl, and reading it back."""

from .jsonl import JsonlSink, read_metrics

__all__ = ["JsonlSink", "read_metrics"]
