"""How long captions are beside the 512 tokens that Wan's text encoder reads.

The tokenizer belongs to the CLIP, which a scan does not load: here the length is estimated, and CacheLatents counts.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["TOKEN_LIMIT", "TextLengths", "estimated_tokens", "lengths_of"]

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
    """From (name, tokens) of each caption."""
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
