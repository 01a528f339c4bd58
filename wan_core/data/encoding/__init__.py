"""Encode once: what of a dataset is not in the cache yet, and putting it there."""

from __future__ import annotations

from .condition import condition_of
from .encode import EncodingReport, encode_missing
from .plan import EncodingPlan, plan_encoding

__all__ = ["EncodingPlan", "EncodingReport", "condition_of", "encode_missing", "plan_encoding"]
