"""wan_core.importers"""

from __future__ import annotations

from .graph_images import match_captions, scan_pixels
from .graph_tensors import PromptKeys, TensorClip, checked_text, space_of, store_clips, store_text
from .maxdiffusion.convert import export_records, import_records
from .maxdiffusion.example import decode_example, decode_tensor, encode_example, encode_tensor
from .maxdiffusion.records import RecordWriter, read_records, record_bytes
from .source import Columns
from .source_file import is_source, list_sources, open_source, source_fingerprint

__all__ = [
    "Columns",
    "PromptKeys",
    "RecordWriter",
    "TensorClip",
    "checked_text",
    "decode_example",
    "decode_tensor",
    "encode_example",
    "encode_tensor",
    "export_records",
    "import_records",
    "is_source",
    "list_sources",
    "match_captions",
    "open_source",
    "read_records",
    "record_bytes",
    "scan_pixels",
    "source_fingerprint",
    "space_of",
    "store_clips",
    "store_text",
]
