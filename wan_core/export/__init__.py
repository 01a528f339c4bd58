"""LoRA files for other programs (key layout, dtype, metadata), publishing them, and cache sets as TFRecords."""

from __future__ import annotations

from .card import hub_folder
from .folders import FOLDERS
from .look import LoraLook, look_at_lora
from .lora_file import LoraFile, file_bytes, lora_metadata, trigger_phrase, workflow_metadata
from .published import publish_file, withdraw_file
from .tfrecords import export_records
