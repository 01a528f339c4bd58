"""Captions beside media files: UTF-8 text, or JSON that holds one; never guessed.

White space is collapsed, as Wan's own prompt cleaning does, so line endings do not change what is trained.

Captions that are lists of tags come in several orders, which follow from the caption alone: the same text gives the
same orders on every machine, so their encodings are found in the cache again, and asking for more keeps the first ones.

Wan's text encoder reads 512 tokens. Its tokenizer belongs to the CLIP, which a scan does not load: here the length is
estimated, and CacheLatents counts.
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
from .allowed import leads_outside


class NotUtf8Error(ValueError):
    """The clause "is not saved as UTF-8 (byte 0xdf at offset 4)"."""


def decoded(data: bytes, start: int = 0) -> str:
    """`data` as text, without a byte order mark; NotUtf8Error for anything that is not UTF-8, or holds a zero byte.

    `start` is where it begins in its file.
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
    """A whole file as text; DatasetError when it is not UTF-8, or has more than `limit_bytes`: name and `too_large`."""
    with open_regular(path) as file:
        data = file.read(limit_bytes + 1)
    if len(data) > limit_bytes:
        raise DatasetError(f"{path.name} {too_large}")
    try:
        return decoded(data)
    except NotUtf8Error as error:
        raise DatasetError(f"{path.name} {error}. Save it again as UTF-8.") from error


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
    data = _caption_bytes(path, allowed=allowed)
    return "" if data is None else caption_in(path, data)


def _caption_bytes(path: Path, *, allowed: Sequence[Path] = ()) -> bytes | None:
    """Returns the bytes of the caption file `path`, None where there is none; links as in `read_caption`."""
    if not os.path.lexists(path):
        return None
    if leads_outside(path, allowed):
        raise DatasetError(f"{shown(path)} {LINK_OUTSIDE}.")
    real = os.path.realpath(path) if os.path.islink(path) else path
    try:
        with open_regular(real, follow_links=False) as file:
            return bytes_in(path, file)
    except FileError as error:
        raise DatasetError(str(error)) from error


def bytes_in(path: Path, file: BinaryIO) -> bytes:
    """Returns the bytes of the caption file `path`, which is open; DatasetError where they are too many."""
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
    """`text` with every run of white space as one space."""
    return " ".join(text.split())


def checked_line(text: str, where: str) -> str:
    """Returns `one_line` of a caption that settings hold; DatasetError, with `where`, for one longer than any."""
    if len(text.encode("utf-8", "surrogatepass")) > MAX_CAPTION_BYTES:
        raise DatasetError(f"{where} is longer than 64 KiB. A caption is one paragraph.")
    return one_line(text)


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
    key = caption_key(known)
    if key is None:
        raise DatasetError(f'{path.name} holds no text under "{CAPTION_KEYS[0]}". Write {{"caption": "what is seen"}}.')
    found: str = known[key]
    # JSON can spell what UTF-8 cannot: half of a surrogate pair.
    if not _is_utf8(found):
        raise DatasetError(f"The caption in {path.name} holds half of a character (a lone surrogate). Write it again.")
    return found


def caption_key(known: Mapping[str, Any]) -> str | None:
    """Returns under which key of a JSON object its caption stands; None where it has none."""
    return next((key for key in CAPTION_KEYS if isinstance(known.get(key), str)), None)


def _is_utf8(text: str) -> bool:
    try:
        return bool(text.encode("utf-8")) or not text
    except UnicodeEncodeError:
        return False


def tag_orders(caption: str, count: int, keep_tokens: int = 0) -> tuple[str, ...]:
    """Up to `count` different orders of the comma-separated tags, the first `keep_tokens` in place.

    The caption as it is when there is nothing to shuffle; fewer than `count` when there are not that many orders.
    """
    tags = [tag.strip() for tag in caption.split(",") if tag.strip()]
    kept, mixed = tags[:keep_tokens], tags[keep_tokens:]
    if count < 1 or len(mixed) < 2:
        return (caption,)
    possible = math.factorial(min(len(mixed), 10))
    orders: dict[str, None] = {}
    for number in range(16 * count + 64):  # enough for all orders of two or three tags to come up
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
"""of a word in an alphabet; a word takes one token at least. T5's tokenizer made 30, 26, 58 and 26 tokens of four
English captions of which this makes 33, 33, 52 and 26.
"""


@dataclass(frozen=True, kw_only=True)
class TextLengths:
    """Token counts of several captions."""

    longest: int
    median: int
    too_long: tuple[str, ...]
    """names of the captions above TOKEN_LIMIT"""


def estimated_tokens(text: str) -> int:
    """About how many tokens umT5 makes of `text`, its end token included."""
    return 1 + sum(_piece_tokens(piece) for piece in _PIECES.findall(text))


def lengths_of(counts: Iterable[tuple[str, int]]) -> TextLengths:
    """Returns the lengths, from (name, tokens) of each caption."""
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
    # Ideographs and kana: common pairs are one token, the rest one each.
    return math.ceil(wide * 0.8) + (math.ceil(narrow / _LETTERS_PER_TOKEN) if narrow else 0)
