"""Where clips and captions come from: allowed folders, the files in them, the text beside them."""

from __future__ import annotations

from .captions import LINK_OUTSIDE, caption_with_prefix, caption_with_trigger, read_caption
from .columns import Columns
from .companions import COMPANION_KINDS, with_companions
from .folders import allowed_file, allowed_folder, list_folders, named_roots, read_roots
from .media_file import (
    CLIP_SUFFIXES,
    COMPANION_FOLDERS,
    OTHER_SUFFIXES,
    STILL_SUFFIXES,
    MediaFile,
    Rejected,
    folder_files,
    folder_fingerprint,
)
from .part import SourceFile, SourcePart
from .places import leads_outside
from .source_file import SOURCE_SUFFIXES, is_source, list_sources, open_source, source_fingerprint
from .tags import tag_orders
from .text_length import TOKEN_LIMIT, TextLengths, estimated_tokens, lengths_of
from .tree import FolderFiles, files_of_folder, fingerprint_of_folder

__all__ = [
    "CLIP_SUFFIXES",
    "COMPANION_FOLDERS",
    "COMPANION_KINDS",
    "LINK_OUTSIDE",
    "OTHER_SUFFIXES",
    "SOURCE_SUFFIXES",
    "STILL_SUFFIXES",
    "TOKEN_LIMIT",
    "Columns",
    "FolderFiles",
    "MediaFile",
    "Rejected",
    "SourceFile",
    "SourcePart",
    "TextLengths",
    "allowed_file",
    "allowed_folder",
    "caption_with_prefix",
    "caption_with_trigger",
    "estimated_tokens",
    "files_of_folder",
    "fingerprint_of_folder",
    "folder_files",
    "folder_fingerprint",
    "is_source",
    "leads_outside",
    "lengths_of",
    "list_folders",
    "list_sources",
    "named_roots",
    "open_source",
    "read_caption",
    "read_roots",
    "source_fingerprint",
    "tag_orders",
    "with_companions",
]
