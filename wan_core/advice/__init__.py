"""What the clips of a dataset are like, marked where it hurts training, and what the set lacks."""

from __future__ import annotations

from .clips import MeasuredClips, measured_clips
from .lacks import advice_on
from .marks import Remark, marks_of, remark_facts

__all__ = [
    "MeasuredClips",
    "Remark",
    "advice_on",
    "marks_of",
    "measured_clips",
    "remark_facts",
]
