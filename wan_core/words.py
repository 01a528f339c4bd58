"""Words that leave the engine: whatever a file, a graph or a person put into them, they can be printed anywhere.

One place, because one that was forgotten is enough: ComfyUI's log cannot encode half of a character and its queue ends
with it, a line feed forges a record, ESC steers the terminal, and bidi marks turn a name around (rule S15).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable

_KEPT = "\u00a0\u3000\u200c\u200d"
"""no-break and ideographic space, and the joiners that words and emoji are spelled with"""


def plain(text: str) -> str:
    """`text` in one line, with everything that is not seen as itself written as an escape: `\\n`, `\\x1b`, `\\ud83d`.

    What is escaped already stays as it is.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in _KEPT else ascii(char)[1:-1] for char in text)


def shortened(text: str, limit: int) -> str:
    """`text`, its middle left out where it is longer than `limit`: a sentence says at its end what to do."""
    half = limit // 2
    return text if len(text) <= limit else f"{text[:half]} [{len(text) - 2 * half} characters] {text[-half:]}"


def first_line(error: BaseException) -> str:
    """The first line of what an error says, at most 200 characters; the name of its type where it says nothing. Of the
    file system it is what the system says, with the name of the file and no path.
    """
    if isinstance(error, OSError) and error.strerror:
        name = os.path.basename(str(error.filename or ""))
        return f"{error.strerror} ({name})"[:200] if name else error.strerror[:200]
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__


def is_text(value: str) -> bool:
    """False where half of a character is left (a lone surrogate): no file, no encoder and no log takes it."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def counted(number: int, noun: str) -> str:
    """A number with its noun: "1 clip", "2 clips", "1,000 clips"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def listed(names: Iterable[str], limit: int = 8) -> str:
    """The first `limit` of the names, and how many more there are: "a.mp4, b.mp4 and 12 more"."""
    every = list(names)
    rest = len(every) - limit
    return ", ".join(every[:limit]) + (f" and {rest:,} more" if rest > 0 else "")


def logger(name: str) -> logging.Logger:
    """The logger of a module; each of its records is one line."""
    found = logging.getLogger(name)
    found.addFilter(_as_plain)
    return found


def _as_plain(record: logging.LogRecord) -> bool:
    record.msg, record.args = plain(record.getMessage()), None
    if record.exc_info:
        lines = logging.Formatter().formatException(record.exc_info).splitlines()
        record.exc_text = "\n".join(map(plain, lines))  # what every formatter prints in place of its own
    return True
