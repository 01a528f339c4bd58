"""Which cached entries are trained at which micro-step."""

from __future__ import annotations

from .batch import Batch, Batches, pad_text
from .order import BUCKET_SAMPLINGS
from .reader import BatchReader

__all__ = ["BUCKET_SAMPLINGS", "Batch", "BatchReader", "Batches", "pad_text"]
