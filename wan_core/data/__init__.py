"""From a folder of clips to batches of latents: scan, bucket, encode once, cache, batch."""

from __future__ import annotations

from .batch import Batch, Batches, pad_text
from .bucket import Bucket, assign_bucket, nearest_frames
from .cache import LatentCache, latent_key, text_key
from .cache_set import CacheItem, CacheSet

__all__ = [
    "Batch",
    "Batches",
    "Bucket",
    "CacheItem",
    "CacheSet",
    "LatentCache",
    "assign_bucket",
    "latent_key",
    "nearest_frames",
    "pad_text",
    "text_key",
]
