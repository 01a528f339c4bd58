"""Measures of the clips of a dataset, findings where they hurt training, and advice on the set."""

from __future__ import annotations

from .clips import MeasuredClips, measured_clips
from .findings import remark_facts, remarks_on_findings
from .lacks import advice_on
