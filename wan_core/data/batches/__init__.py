"""Which cached entries are trained at which micro-step."""

from __future__ import annotations

from .batch import Batch, Batches, pad_text

__all__ = ["Batch", "Batches", "pad_text"]
