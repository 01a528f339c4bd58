"""From a folder of clips to batches of latents: scan, bucket, encode once, cache, batch."""

from __future__ import annotations

from .batches import Batch, Batches, pad_text
from .bucket import Bucket, assign_bucket, nearest_frames
from .cache import (
    TEXT_LENGTH,
    TEXT_WIDTH,
    CacheItem,
    CacheSet,
    LatentCache,
    condition_key,
    latent_key,
    read_picture,
    synthetic_mark,
    synthetic_note,
    text_key,
    write_picture,
)
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
from .encoding import EncodingPlan, EncodingReport, condition_of, encode_missing, plan_encoding
from .prompts import DEFAULT_NEGATIVE_PROMPT
from .samples import (
    Cut,
    Dataset,
    DatasetConfig,
    Rejected,
    Sample,
    ScanResult,
    contact_sheet,
    scan_files,
    scan_folder,
)
from .sources import (
    MediaFile,
    allowed_folder,
    folder_fingerprint,
    list_folders,
    read_roots,
)
from .tensors import SyntheticConfig, synthetic_set

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
    "Cut",
    "Dataset",
    "DatasetConfig",
    "EncodingPlan",
    "EncodingReport",
    "LatentCache",
    "MediaFile",
    "Rejected",
    "Sample",
    "ScanResult",
    "SyntheticConfig",
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
    "scan_files",
    "scan_folder",
    "stack_conditions",
    "synthetic_mark",
    "synthetic_note",
    "synthetic_set",
    "text_key",
    "with_mask",
    "write_picture",
]
