"""Writes events to metrics.jsonl, and reads the file as records, by line number (pages), or from the end (tail)."""

from __future__ import annotations

from .best import Suggestion, suggest, suggest_of_pair
from .health import HealthWatch
from .jsonl import JsonlSink
from .measured import broken_previews, read_experts, read_measured
from .pages import MetricsPages
from .ranks import FOLDER, RANK_FILE, RankFile, forget_ranks, read_ranks
from .records import LossCurve, finite, read_loss_curve, records_of, whole
from .tail import MetricsTail, read_tail
