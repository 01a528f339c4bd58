"""Measures of the clips of a dataset, marks where they hurt training, and advice on the set."""

from __future__ import annotations

from .clips import MeasuredClips, measured_clips
from .lacks import advice_on
from .marks import remark_facts

__all__ = [
    "MeasuredClips",
    "advice_on",
    "measured_clips",
    "remark_facts",
]
