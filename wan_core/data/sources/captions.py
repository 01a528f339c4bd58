"""Captions beside media files: UTF-8 text, never guessed.

White space is collapsed, as Wan's own prompt cleaning does, so line endings do not change what is
trained.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ...errors import DatasetError
from ...files import FileError, lies_under, open_regular
from ...video import shown

__all__ = ["LINK_OUTSIDE", "MAX_CAPTION_BYTES", "caption_with_trigger", "read_caption"]

MAX_CAPTION_BYTES = 64 << 10
"""Far above the 512 tokens the text encoder sees."""

LINK_OUTSIDE = "is a link that leads outside the allowed folders; put the file itself into the dataset folder"
"""why a file of a dataset folder is neither opened nor read (S2, S16)"""


def read_caption(path: Path, *, allowed: Sequence[Path] = ()) -> str:
    """The caption in `path`; "" when the file is missing or holds only white space.

    A link may lead anywhere below the caption's own folder or below `allowed`; elsewhere it is refused unread.
    """
    if not os.path.lexists(path):
        return ""
    real = os.path.realpath(path)
    if not lies_under(real, (path.parent, *allowed)):
        raise DatasetError(f"{shown(path)} {LINK_OUTSIDE}.")
    try:
        with open_regular(real, follow_links=False) as file:
            data = file.read(MAX_CAPTION_BYTES + 1)
    except FileError as error:
        raise DatasetError(str(error)) from error
    if len(data) > MAX_CAPTION_BYTES:
        raise DatasetError(f"{path.name} is longer than 64 KiB. A caption is one paragraph.")
    return " ".join(_decoded(path, data).split())


def caption_with_trigger(caption: str, trigger_word: str) -> str:
    """`caption`, with the trigger word in front unless it is in there already."""
    if not trigger_word or trigger_word in caption:
        return caption
    return f"{trigger_word}, {caption}" if caption else trigger_word


def _decoded(path: Path, data: bytes) -> str:
    zero = data.find(b"\0")
    try:
        if zero >= 0:
            raise UnicodeDecodeError("utf-8", data, zero, zero + 1, "zero byte")
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DatasetError(
            f"{path.name} is not UTF-8: byte 0x{data[error.start]:02x} at offset {error.start}. Save it again as UTF-8."
        ) from error
