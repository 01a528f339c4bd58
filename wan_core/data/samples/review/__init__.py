"""What is to be known of a dataset before the GPU works: epochs, speed, copies, the size of the cache."""

from __future__ import annotations

from .review import dataset_review

__all__ = ["dataset_review"]
