"""From a folder of clips to batches of latents: scan, bucket, encode once, cache, batch."""

from __future__ import annotations

from .batch import Batch, Batches, pad_text
from .bucket import Bucket, assign_bucket, nearest_frames
from .cache import TEXT_LENGTH, TEXT_WIDTH, LatentCache, condition_key, latent_key, text_key
from .cache_set import CacheItem, CacheSet
from .conditioning import (
    CONDITION_TENSORS,
    ConditionKind,
    condition_kind,
    condition_named,
    given_frames,
    given_mask,
    stack_conditions,
    with_mask,
)
from .dataset import Dataset
from .encode import EncodingReport, condition_of, encode_missing
from .encoding_plan import EncodingPlan, plan_encoding
from .folders import allowed_folder, list_folders, read_roots
from .pictures import read_picture, write_picture
from .prompts import DEFAULT_NEGATIVE_PROMPT
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
    "CONDITION_TENSORS",
    "DEFAULT_NEGATIVE_PROMPT",
    "TEXT_LENGTH",
    "TEXT_WIDTH",
    "Batch",
    "Batches",
    "Bucket",
    "CacheItem",
    "CacheSet",
    "ConditionKind",
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
    "condition_key",
    "condition_kind",
    "condition_named",
    "condition_of",
    "contact_sheet",
    "encode_missing",
    "folder_fingerprint",
    "given_frames",
    "given_mask",
    "latent_key",
    "list_folders",
    "nearest_frames",
    "pad_text",
    "plan_encoding",
    "read_picture",
    "read_roots",
    "scan_folder",
    "stack_conditions",
    "text_key",
    "with_mask",
    "write_picture",
]
