"""From files to samples: how each is cut, and what of a dataset is not used and why. Opens no pixel and no weight."""

from __future__ import annotations

from .config import CROPS, FLIPS, MASK_USES, MISSING_CAPTIONS, DatasetConfig
from .dataset import Dataset
from .facts import dataset_facts
from .held_out import file_names, files_below, held_out_digests
from .pixels import read_sample
from .review import DatasetReview, dataset_review
from .sample import Companion, Cut, Rejected, Sample, ScanResult
from .scan import MIN_SOURCE_PIXELS, Progress, scan_files, scan_folder
from .scan_source import config_of_part, scan_parts
from .sheet import contact_sheet
from .windows import FRAME_EXTRACTIONS, FRAME_ROUNDINGS

__all__ = [
    "CROPS",
    "FLIPS",
    "FRAME_EXTRACTIONS",
    "FRAME_ROUNDINGS",
    "MASK_USES",
    "MIN_SOURCE_PIXELS",
    "MISSING_CAPTIONS",
    "Companion",
    "Cut",
    "Dataset",
    "DatasetConfig",
    "DatasetReview",
    "Progress",
    "Rejected",
    "Sample",
    "ScanResult",
    "config_of_part",
    "contact_sheet",
    "dataset_facts",
    "dataset_review",
    "file_names",
    "files_below",
    "held_out_digests",
    "read_sample",
    "scan_files",
    "scan_folder",
    "scan_parts",
]
