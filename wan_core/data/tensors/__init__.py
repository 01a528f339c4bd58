"""Data that comes as tensors: made elsewhere, or drawn at random. Neither clips nor encoders are needed."""

from __future__ import annotations

from .maxdiffusion import ExportReport, ImportReport, export_records, import_records
from .pixels import PixelClip, match_captions, scan_pixels
from .store import PromptKeys, TensorClip, checked_latent, checked_text, space_of, store_clips, store_text
from .synthetic import SyntheticConfig, synthetic_set

__all__ = [
    "ExportReport",
    "ImportReport",
    "PixelClip",
    "PromptKeys",
    "SyntheticConfig",
    "TensorClip",
    "checked_latent",
    "checked_text",
    "export_records",
    "import_records",
    "match_captions",
    "scan_pixels",
    "space_of",
    "store_clips",
    "store_text",
    "synthetic_set",
]
