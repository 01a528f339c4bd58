"""From files to samples: how each is cut, and what of a dataset is not used and why. Opens no pixel and no weight."""

from __future__ import annotations

from .config import DatasetConfig
from .dataset import Dataset
from .report import contact_sheet
from .sample import Cut, Rejected, Sample, ScanResult
from .scan import MIN_SOURCE_PIXELS, Progress, scan_files, scan_folder

__all__ = [
    "MIN_SOURCE_PIXELS",
    "Cut",
    "Dataset",
    "DatasetConfig",
    "Progress",
    "Rejected",
    "Sample",
    "ScanResult",
    "contact_sheet",
    "scan_files",
    "scan_folder",
]
