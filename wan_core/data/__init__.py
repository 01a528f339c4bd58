"""From a folder of clips to batches of latents: scan, bucket, encode once, cache, batch."""

from __future__ import annotations

from .batch import Batch, Batches, pad_text
from .bucket import Bucket, assign_bucket, nearest_frames
from .cache import TEXT_LENGTH, TEXT_WIDTH, LatentCache, latent_key, text_key
from .cache_set import CacheItem, CacheSet
from .dataset import Dataset
from .encode import (
    DEFAULT_NEGATIVE_PROMPT,
    EncodingPlan,
    EncodingReport,
    encode_missing,
    plan_encoding,
)
from .folders import allowed_folder, list_folders, read_roots
from .report import contact_sheet
from .scan import (
    DatasetConfig,
    Rejected,
    Sample,
    ScanResult,
    folder_fingerprint,
    scan_folder,
)

__all__ = [
    "DEFAULT_NEGATIVE_PROMPT",
    "TEXT_LENGTH",
    "TEXT_WIDTH",
    "Batch",
    "Batches",
    "Bucket",
    "CacheItem",
    "CacheSet",
    "Dataset",
    "DatasetConfig",
    "EncodingPlan",
    "EncodingReport",
    "LatentCache",
    "Rejected",
    "Sample",
    "ScanResult",
    "allowed_folder",
    "assign_bucket",
    "contact_sheet",
    "encode_missing",
    "folder_fingerprint",
    "latent_key",
    "list_folders",
    "nearest_frames",
    "pad_text",
    "plan_encoding",
    "read_roots",
    "scan_folder",
    "text_key",
]
