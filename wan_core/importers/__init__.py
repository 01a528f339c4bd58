"""Datasets other than folders: lists, tars, Hugging Face datasets, other trainers' settings, tensors."""

from __future__ import annotations

from .graph_images import Pixels, match_captions, scan_pixels
from .graph_tensors import PromptKeys, TensorClip, checked_text, store_clips, store_text
from .source import Columns, SourceFile
from .source_file import is_source, list_sources, open_source, source_fingerprint, stated_mark, stated_settings
from .trainers.ai_toolkit import processes_of
from .trainers.detect import is_backend_list, parse_document, read_settings_text
from .trainers.ledger import Ledger
