"""Makes what a caption file becomes when another caption is written into it.

It is written as the reader of captions reads it, and only where it reads back as what was meant; what stands around the
caption (byte order mark, last line break, other keys of a JSON object) stays.
"""

from __future__ import annotations

import codecs
import json
from pathlib import Path
from typing import Any

from ..errors import DatasetError
from ..video import shown
from .captions import CAPTION_KEYS, MAX_CAPTION_BYTES, caption_in, caption_key, decoded, one_line

CAPTION_SUFFIXES = (".txt", ".caption", ".json")
"""endings of the files that are written: whatever ending a graph asks for, no other kind of file can come of it"""


def with_caption(path: Path, data: bytes | None, caption: str) -> bytes:
    """Returns the bytes of the caption file `path`, which holds `data` now, with another caption in it.

    Of a file that is no UTF-8 or no JSON nothing stays. DatasetError where it would not be read back as `caption`, on
    one line.
    """
    caption, is_json = one_line(caption), path.suffix.lower() == ".json"
    old = data or b""
    try:
        text = decoded(old)
        if is_json and text.strip():
            json.loads(text)
    except (ValueError, RecursionError):
        old = b""
    try:
        made = _json_with(old, caption) if is_json else _around(old, caption.encode())
        reads_back = caption_in(path, made) == caption
    except (DatasetError, ValueError):
        made, reads_back = b"", False
    if len(made) > MAX_CAPTION_BYTES:
        raise DatasetError("The caption is longer than 64 KiB. A caption is one paragraph.")
    if not reads_back:
        raise DatasetError(
            f"{shown(path)} would not be read as this caption: it has a character that text files cannot hold, or the "
            "file has numbers that JSON cannot. Write it again, or edit the file itself."
        )
    return made


def _around(old: bytes, made: bytes) -> bytes:
    """Returns `made` with the byte order mark and the last line break that `old` has."""
    mark = codecs.BOM_UTF8 if old.startswith(codecs.BOM_UTF8) else b""
    end = next((end for end in (b"\r\n", b"\n") if old.endswith(end)), b"")
    return mark + made + end


def _json_with(old: bytes, caption: str) -> bytes:
    text = old.decode("utf-8-sig")
    known: Any = json.loads(text) if text.strip() else {}
    whole = {**known, caption_key(known) or CAPTION_KEYS[0]: caption} if isinstance(known, dict) else caption
    spread = 2 if "\n" in text.strip() else None
    made = json.dumps(whole, ensure_ascii=False, indent=spread, allow_nan=False)
    # Half of a character in another key: JSON spells it as this very escape.
    return _around(old, made.encode("utf-8", "backslashreplace"))
