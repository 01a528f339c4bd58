"""From files to samples: how each is cut, and what of a dataset is not used and why. Opens no pixel and no weight."""

from __future__ import annotations

from .config import DatasetConfig
from .dataset import Dataset
from .report import contact_sheet
from .review import dataset_review
from .sample import Companion, Cut, Rejected, Sample, ScanResult
from .scan import Progress, scan_files, scan_folder

__all__ = [
    "Companion",
    "Cut",
    "Dataset",
    "DatasetConfig",
    "Progress",
    "Rejected",
    "Sample",
    "ScanResult",
    "contact_sheet",
    "dataset_review",
    "scan_files",
    "scan_folder",
]
