"""Captions beside media files: UTF-8 text, or JSON that holds one; never guessed.

White space is collapsed, as Wan's own prompt cleaning does, so line endings do not change what is
trained.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from ...errors import DatasetError
from ...files import FileError, open_regular
from ...video import shown
from .places import leads_outside
from .utf8 import NotUtf8Error, decoded

__all__ = [
    "CAPTION_KEYS",
    "LINK_OUTSIDE",
    "MAX_CAPTION_BYTES",
    "caption_with_prefix",
    "caption_with_trigger",
    "one_line",
    "read_caption",
]

MAX_CAPTION_BYTES = 64 << 10
"""Far above the 512 tokens the text encoder sees."""

CAPTION_KEYS = ("caption", "text", "prompt", "description")
"""what a caption is called in JSON files and in lists, most usual first"""

LINK_OUTSIDE = "is a link that leads outside the allowed folders; put the file itself into the dataset folder"
"""why a file of a dataset folder is neither opened nor read (S2, S16)"""


def read_caption(path: Path, *, allowed: Sequence[Path] = ()) -> str:
    """The caption in `path`; "" when the file is missing or holds only white space.

    A link may lead anywhere below the caption's own folder or below `allowed`; elsewhere it is refused unread.
    """
    if not os.path.lexists(path):
        return ""
    if leads_outside(path, allowed):
        raise DatasetError(f"{shown(path)} {LINK_OUTSIDE}.")
    real = os.path.realpath(path) if os.path.islink(path) else path
    try:
        with open_regular(real, follow_links=False) as file:
            data = file.read(MAX_CAPTION_BYTES + 1)
    except FileError as error:
        raise DatasetError(str(error)) from error
    if len(data) > MAX_CAPTION_BYTES:
        raise DatasetError(f"{path.name} is longer than 64 KiB. A caption is one paragraph.")
    try:
        text = decoded(data)
    except NotUtf8Error as error:
        raise DatasetError(f"{path.name} {error}. Save it again as UTF-8.") from error
    return one_line(_from_json(path, text) if path.suffix.lower() == ".json" and text.strip() else text)


def one_line(text: str) -> str:
    """`text` with every run of white space as one space."""
    return " ".join(text.split())


def caption_with_prefix(caption: str, prefix: str) -> str:
    """`caption` with `prefix` in front; the prefix alone where there is no caption."""
    return one_line(f"{prefix} {caption}")


def caption_with_trigger(caption: str, trigger_word: str) -> str:
    """`caption`, with the trigger word in front unless it is in there already.

    It takes the place of "[trigger]", as in ai-toolkit.
    """
    if trigger_word:
        caption = caption.replace("[trigger]", trigger_word)
    if not trigger_word or trigger_word in caption:
        return caption
    return f"{trigger_word}, {caption}" if caption else trigger_word


def _from_json(path: Path, text: str) -> str:
    """The caption of `{"caption": "..."}`, or of a file that is one JSON string."""
    try:
        data: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"{path.name} is not valid JSON ({error}). Save it again, or use .txt captions.") from error
    known = cast("dict[str, Any]", data) if isinstance(data, dict) else {"caption": data}
    found = next((known[key] for key in CAPTION_KEYS if isinstance(known.get(key), str)), None)
    if found is None:
        raise DatasetError(f'{path.name} holds no text under "{CAPTION_KEYS[0]}". Write {{"caption": "what is seen"}}.')
    # JSON can spell what UTF-8 cannot: half of a surrogate pair.
    if not _is_utf8(found):
        raise DatasetError(f"The caption in {path.name} holds half of a character (a lone surrogate). Write it again.")
    return found


def _is_utf8(text: str) -> bool:
    try:
        return bool(text.encode("utf-8")) or not text
    except UnicodeEncodeError:
        return False
