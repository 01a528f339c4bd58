"""Where clips and captions come from: allowed folders, the files in them, the text beside them."""

from __future__ import annotations

from .captions import LINK_OUTSIDE, caption_with_prefix, caption_with_trigger, read_caption
from .folders import allowed_folder, list_folders, read_roots
from .media_file import (
    CLIP_SUFFIXES,
    OTHER_SUFFIXES,
    STILL_SUFFIXES,
    MediaFile,
    Rejected,
    folder_files,
    folder_fingerprint,
)
from .tags import tag_orders
from .text_length import TOKEN_LIMIT, TextLengths, estimated_tokens, lengths_of
from .tree import FolderFiles, files_of_folder, fingerprint_of_folder

__all__ = [
    "CLIP_SUFFIXES",
    "LINK_OUTSIDE",
    "OTHER_SUFFIXES",
    "STILL_SUFFIXES",
    "TOKEN_LIMIT",
    "FolderFiles",
    "MediaFile",
    "Rejected",
    "TextLengths",
    "allowed_folder",
    "caption_with_prefix",
    "caption_with_trigger",
    "estimated_tokens",
    "files_of_folder",
    "fingerprint_of_folder",
    "folder_files",
    "folder_fingerprint",
    "lengths_of",
    "list_folders",
    "read_caption",
    "read_roots",
    "tag_orders",
]
