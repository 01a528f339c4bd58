"""What is to be known of a dataset before the GPU works: epochs, speed, copies, the size of the cache."""

from __future__ import annotations

from .review import DatasetReview, dataset_review

__all__ = ["DatasetReview", "dataset_review"]
