"""Datasets: scans a folder or list into samples, cuts windows and crops, and reports problems.

Loads no weights and decodes no pixels until a sample is read.
"""

from __future__ import annotations

from .allowed import allowed_file, allowed_folder, list_folders, named_roots, read_roots
from .caption_edits import CaptionEdits, Found, Written, scanned_files
from .captioning import CaptionRules, answers_of, clips_by_name, frames_to_look_at, with_new_captions
from .captions import TOKEN_LIMIT, TextLengths, lengths_of
from .conditioning import (
    DEFAULT_NEGATIVE_PROMPT,
    NOTHING_TO_PREDICT,
    stack_conditions,
    with_mask,
)
from .config import DatasetConfig
from .contact_sheet import Thumbnails, contact_sheet
from .control_files import LONGEST_REFERENCE, roles_beside
from .cutting import read_sample, scene_cuts
from .facts import clip_groups, dataset_facts, findings_by_file
from .files import MediaFile, fingerprint_of_folder
from .held_out import held_out_digests, nothing_trained, require_trained
from .known_files import KnownFiles, Progress, ScanContext
from .report import dataset_report, scan_report
from .review import DatasetReview, dataset_review
from .sample import Companion, Dataset, Sample, ScanResult, one_per_file
from .scan import MIN_SOURCE_PIXELS, scan_files, scan_folder, scan_parts
