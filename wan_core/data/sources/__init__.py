"""Where clips and captions come from: allowed folders, the files in them, the text beside them."""

from __future__ import annotations

from .captions import LINK_OUTSIDE, caption_with_trigger, read_caption
from .companions import with_companions
from .folders import allowed_folder, list_folders, read_roots
from .media_file import (
    CLIP_SUFFIXES,
    OTHER_SUFFIXES,
    STILL_SUFFIXES,
    MediaFile,
    folder_files,
    folder_fingerprint,
)

__all__ = [
    "CLIP_SUFFIXES",
    "LINK_OUTSIDE",
    "OTHER_SUFFIXES",
    "STILL_SUFFIXES",
    "MediaFile",
    "allowed_folder",
    "caption_with_trigger",
    "folder_files",
    "folder_fingerprint",
    "list_folders",
    "read_caption",
    "read_roots",
    "with_companions",
]
