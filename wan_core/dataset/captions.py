"""Captions: UTF-8 text or JSON, with trigger words, tag orders and estimated token counts.

Runs of white space become one space, as in Wan's own prompt cleaning. Shuffled tag orders depend on the caption only,
so their text encodings are cache hits on every machine. A larger number of orders keeps the first ones. A scan does not
load the text encoder with its tokenizer, so it estimates the number of tokens; encoding counts them.
"""

from __future__ import annotations

import codecs
import hashlib
import json
import math
import os
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from ..errors import DatasetError
from ..files import FileError, open_regular
from ..video import shown
from ..words import is_text
from .allowed import leads_outside


class NotUtf8Error(ValueError):
    """The reason why bytes are not text, such as "is not saved as UTF-8 (byte 0xdf at offset 4)"."""


def decoded(data: bytes, start: int = 0) -> str:
    """Returns UTF-8 `data` as text without byte order mark; NotUtf8Error if it is not UTF-8 or has a zero byte.

    `start`: offset of `data` in the file, for the message.
    """
    zero = data.find(b"\0")
    bad = [zero] if zero >= 0 else []
    text = ""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        bad.append(error.start)
    if bad:
        guess = "; it looks like UTF-16" if data[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else ""
        byte, place = data[min(bad)], start + min(bad)
        raise NotUtf8Error(f"is not saved as UTF-8 (byte 0x{byte:02x} at offset {place}{guess})")
    return text


def read_utf8(path: Path, limit_bytes: int, too_large: str) -> str:
    """Returns a file as text; DatasetError if it is not UTF-8, or (`too_large`) longer than `limit_bytes`."""
    with open_regular(path) as file:
        data = file.read(limit_bytes + 1)
    if len(data) > limit_bytes:
        raise DatasetError(f"{path.name} {too_large}")
    try:
        return decoded(data)
    except NotUtf8Error as error:
        raise DatasetError(f"{path.name} {error}. Save it again as UTF-8.") from error


MAX_CAPTION_BYTES = 64 << 10
"""largest caption file, far beyond the 512 tokens of the text encoder"""

CAPTION_KEYS = ("caption", "text", "prompt", "description")
"""names of captions in JSON files and lists, the most usual first"""

LINK_OUTSIDE = "is a link that leads outside the allowed folders; put the file itself into the dataset folder"
"""refusal of a link in a dataset folder (S2 and S16 of docs/use/security.md)"""


def read_caption(path: Path, *, allowed: Sequence[Path] = ()) -> str:
    """Returns the caption in `path`; "" if the file is missing or blank.

    DatasetError, without reading it, for a link that leads neither below the caption's folder nor below `allowed`.
    """
    if not os.path.lexists(path):
        return ""
    if leads_outside(path, allowed):
        raise DatasetError(f"{shown(path)} {LINK_OUTSIDE}.")
    real = os.path.realpath(path) if os.path.islink(path) else path
    try:
        with open_regular(real, follow_links=False) as file:
            data = bytes_in(path, file)
    except FileError as error:
        raise DatasetError(str(error)) from error
    return caption_in(path, data)


def bytes_in(path: Path, file: BinaryIO) -> bytes:
    """Returns the bytes of an open caption file; DatasetError if it is too long."""
    data = file.read(MAX_CAPTION_BYTES + 1)
    if len(data) > MAX_CAPTION_BYTES:
        raise DatasetError(f"{path.name} is longer than 64 KiB. A caption is one paragraph.")
    return data


def caption_in(path: Path, data: bytes) -> str:
    """Returns the caption in the bytes of the caption file `path`."""
    try:
        text = decoded(data)
    except NotUtf8Error as error:
        raise DatasetError(f"{path.name} {error}. Save it again as UTF-8.") from error
    return one_line(_from_json(path, text) if path.suffix.lower() == ".json" and text.strip() else text)


def one_line(text: str) -> str:
    """Returns `text` with every run of white space replaced by one space."""
    return " ".join(text.split())


def checked_line(text: str, where: str) -> str:
    """Returns `one_line` of a caption in a settings file; DatasetError, with `where`, if it is too long."""
    if len(text.encode("utf-8", "surrogatepass")) > MAX_CAPTION_BYTES:
        raise DatasetError(f"{where} is longer than 64 KiB. A caption is one paragraph.")
    return one_line(text)


def caption_with_prefix(caption: str, prefix: str) -> str:
    """Returns the prefix and the caption; either may be empty."""
    return one_line(f"{prefix} {caption}")


def caption_with_trigger(caption: str, trigger_word: str) -> str:
    """Returns the caption with the trigger word: in place of "[trigger]" (as in ai-toolkit), or in front."""
    if trigger_word:
        caption = caption.replace("[trigger]", trigger_word)
    if not trigger_word or trigger_word in caption:
        return caption
    return f"{trigger_word}, {caption}" if caption else trigger_word


def class_caption(caption: str, trigger_word: str, class_word: str) -> str:
    """Returns the caption with the class word, which may be empty, in place of the trigger word."""
    return one_line(caption.replace(trigger_word.strip() or "\0", class_word)).lstrip(" ,")


def _from_json(path: Path, text: str) -> str:
    """Returns the caption of `{"caption": "..."}`, or of a file that is one JSON string."""
    try:
        data: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"{path.name} is not valid JSON ({error}). Save it again, or use .txt captions.") from error
    known = cast("dict[str, Any]", data) if isinstance(data, dict) else {"caption": data}
    key = caption_key(known)
    if key is None:
        raise DatasetError(f'{path.name} holds no text under "{CAPTION_KEYS[0]}". Write {{"caption": "what is seen"}}.')
    found: str = known[key]
    # A JSON escape can spell a lone surrogate, which no text encoder accepts.
    if not is_text(found):
        raise DatasetError(f"The caption in {path.name} contains half a character (a lone surrogate). Write it again.")
    return found


def caption_key(known: Mapping[str, Any]) -> str | None:
    """Returns the key of a JSON object that holds its caption; None if there is none."""
    return next((key for key in CAPTION_KEYS if isinstance(known.get(key), str)), None)


def tag_orders(caption: str, count: int, keep_tokens: int = 0) -> tuple[str, ...]:
    """Returns up to `count` different orders of the comma-separated tags; the first `keep_tokens` tags stay in front.

    Returns the unchanged caption if there is nothing to shuffle.
    """
    tags = [tag.strip() for tag in caption.split(",") if tag.strip()]
    kept, mixed = tags[:keep_tokens], tags[keep_tokens:]
    if count < 1 or len(mixed) < 2:
        return (caption,)
    possible = math.factorial(min(len(mixed), 10))
    orders: dict[str, None] = {}
    # Random orders repeat; this number of draws finds all orders of two or three tags.
    for number in range(16 * count + 64):
        if len(orders) == min(count, possible):
            break
        orders.setdefault(", ".join((*kept, *_mixed(mixed, f"{caption}/{number}"))))
    return tuple(orders)


def _mixed(tags: list[str], salt: str) -> list[str]:
    salted = hashlib.blake2b(salt.encode(), digest_size=16)

    def place(index: int) -> bytes:
        digest = salted.copy()
        digest.update(f"/{index}".encode())
        return digest.digest()

    return [tags[index] for index in sorted(range(len(tags)), key=place)]


TOKEN_LIMIT = 512
"""Wan configs: text_len"""

_PIECES = re.compile(r"[^\W_]+|[^\w\s]|_")
_LETTERS_PER_TOKEN = 5.0
"""letters per token; a word has at least one token. For four English captions T5 counts 30, 26, 58 and 26 tokens, and
this estimate gives 33, 33, 52 and 26."""


@dataclass(frozen=True, kw_only=True)
class TextLengths:
    """Token counts of a set of captions."""

    longest: int
    median: int
    too_long: tuple[str, ...]
    """names of captions longer than TOKEN_LIMIT"""


def estimated_tokens(text: str) -> int:
    """Returns an estimate of the umT5 tokens of `text`, with the end token."""
    return 1 + sum(_piece_tokens(piece) for piece in _PIECES.findall(text))


def lengths_of(counts: Iterable[tuple[str, int]]) -> TextLengths:
    """Returns the lengths of (name, tokens) pairs."""
    known = list(counts)
    numbers = sorted(count for _name, count in known) or [0]
    return TextLengths(
        longest=numbers[-1],
        median=numbers[len(numbers) // 2],
        too_long=tuple(name for name, count in known if count > TOKEN_LIMIT),
    )


def _piece_tokens(piece: str) -> int:
    if len(piece) == 1:
        return 1
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in piece)
    narrow = len(piece) - wide
    # Ideographs and kana: umT5 has one token for common pairs, one per character otherwise.
    return math.ceil(wide * 0.8) + (math.ceil(narrow / _LETTERS_PER_TOKEN) if narrow else 0)
