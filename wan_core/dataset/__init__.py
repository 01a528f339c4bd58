"""wan_core.dataset"""

from __future__ import annotations

from .allowed import allowed_file, allowed_folder, list_folders, named_roots, read_roots
from .bucket import Bucket
from .captions import TOKEN_LIMIT, TextLengths, estimated_tokens, lengths_of, tag_orders
from .conditioning import (
    DEFAULT_NEGATIVE_PROMPT,
    ConditionKind,
    condition_kind,
    condition_named,
    given_frames,
    given_mask,
    masked_kind,
    stack_conditions,
    with_mask,
)
from .config import CROPS, FLIPS, MASK_USES, MISSING_CAPTIONS, DatasetConfig
from .contact_sheet import contact_sheet
from .cutting import read_sample
from .facts import dataset_facts
from .files import MediaFile, files_of_folder, fingerprint_of_folder, folder_fingerprint, with_companions
from .held_out import file_names, files_below, held_out_digests
from .part import SourceFile
from .review import DatasetReview, dataset_review
from .sample import Companion, Cut, Dataset, Sample, ScanResult
from .scan import MIN_SOURCE_PIXELS, Progress, scan_files, scan_folder, scan_parts
from .windows import FRAME_EXTRACTIONS, FRAME_ROUNDINGS

__all__ = [
    "Bucket",
    "CROPS",
    "Companion",
    "ConditionKind",
    "Cut",
    "DEFAULT_NEGATIVE_PROMPT",
    "Dataset",
    "DatasetConfig",
    "DatasetReview",
    "FLIPS",
    "FRAME_EXTRACTIONS",
    "FRAME_ROUNDINGS",
    "MASK_USES",
    "MIN_SOURCE_PIXELS",
    "MISSING_CAPTIONS",
    "MediaFile",
    "Progress",
    "Sample",
    "ScanResult",
    "SourceFile",
    "TOKEN_LIMIT",
    "TextLengths",
    "allowed_file",
    "allowed_folder",
    "condition_kind",
    "condition_named",
    "contact_sheet",
    "dataset_facts",
    "dataset_review",
    "estimated_tokens",
    "file_names",
    "files_below",
    "files_of_folder",
    "fingerprint_of_folder",
    "folder_fingerprint",
    "given_frames",
    "given_mask",
    "held_out_digests",
    "lengths_of",
    "list_folders",
    "masked_kind",
    "named_roots",
    "read_roots",
    "read_sample",
    "scan_files",
    "scan_folder",
    "scan_parts",
    "stack_conditions",
    "tag_orders",
    "with_companions",
    "with_mask",
]
