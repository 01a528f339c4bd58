"""The life of one worker: it trains a run, judges it, or renders its clips.

The jobs of a training (train_job) are imported by their file: they load every library.
"""

from __future__ import annotations

from .sample_job import sample_job

__all__ = ["sample_job"]
