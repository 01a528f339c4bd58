"""Text output: printable text of untrusted strings (rule S15), and translatable sentences.

Unprintable characters do damage. A lone surrogate in a log record ends ComfyUI's queue, a line feed forges a record,
ESC controls the terminal, and bidi marks reverse names.
"""

from __future__ import annotations

import logging
import os
import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

_KEPT = "\u00a0\u3000\u200c\u200d"
"""characters that are kept, although unprintable for Python: no-break and ideographic space, zero-width joiners"""


_HOLE = re.compile(r"\{(\w+)\}")
_SENTENCES = "sentences"
"""key in a JSON object: text -> template and values of each sentence in the object"""
_DEEPEST = 8
"""deepest nesting of sentences read from JSON"""


class Sentence(str):
    """English text with its template and values. The page fills the translated template with the same values.

    `values` are texts, sentences and lists of them. Formatting or joining a sentence gives plain text.
    """

    template: str
    values: dict[str, Any]

    def __new__(cls, text: str, template: str, values: dict[str, Any]) -> Sentence:
        sentence = super().__new__(cls, text)
        sentence.template, sentence.values = template, values
        return sentence

    def __str__(self) -> str:
        """Returns itself, so that `str(error)` keeps the values."""
        return self

    def __reduce__(self) -> tuple[type[Sentence], tuple[str, str, dict[str, Any]]]:
        return Sentence, ("".join(self), self.template, self.values)


def filled(template: str, /, **values: object) -> Sentence:
    """Returns a template with its `{holes}` filled; lists are joined by semicolons, holes without a value stay."""
    known: dict[str, Any] = {}
    for name in _HOLE.findall(template):
        if name in values:
            value = values[name]
            known[name] = value if isinstance(value, list) else plain(str(value))
    texts = {name: "; ".join(value) if isinstance(value, list) else value for name, value in known.items()}
    # One pass over the template, so that braces in values are no holes.
    return Sentence(_HOLE.sub(lambda hole: texts.get(hole[1], hole[0]), template), template, known)


def with_sentences(data: dict[str, Any]) -> dict[str, Any]:
    """Returns JSON data, with the templates and values of its sentences under `_SENTENCES` if it has any."""
    found: dict[str, Any] = {}
    _gather(data, found)
    return {**data, _SENTENCES: found} if found else data


def _gather(value: Any, found: dict[str, Any]) -> None:
    if isinstance(value, Sentence) and value not in found:
        found["".join(value)] = {"template": value.template, "values": value.values}
        _gather(value.values, found)
    elif isinstance(value, dict | list | tuple):
        for inner in value.values() if isinstance(value, dict) else value:
            _gather(inner, found)


def sentences_back(data: dict[str, Any]) -> dict[str, Any]:
    """The inverse of `with_sentences`. Files are untrusted, so a template whose values do not give the text is
    ignored."""
    known = data.get(_SENTENCES)
    rest = {name: value for name, value in data.items() if name != _SENTENCES}
    made: dict[str, str] = {}
    return {name: _revived(value, known, made) for name, value in rest.items()} if isinstance(known, dict) else rest


def _revived(value: Any, known: dict[Any, Any], made: dict[str, str], depth: int = 0) -> Any:
    """Returns `value` with its texts as sentences. `made`: text -> result, which also ends cycles."""
    if isinstance(value, list):
        return [_revived(inner, known, made, depth) for inner in value]
    if isinstance(value, dict):
        return {name: _revived(inner, known, made, depth) for name, inner in value.items()}
    if not isinstance(value, str) or value in made:
        return made.get(value, value) if isinstance(value, str) else value
    parts = known.get(value)
    made[value] = value
    if depth < _DEEPEST and isinstance(parts, dict) and isinstance(parts.get("values"), dict):
        values = {str(name): _revived(inner, known, made, depth + 1) for name, inner in parts["values"].items()}
        sentence = filled(str(parts.get("template")), **values)
        made[value] = sentence if sentence == value else value
    return made[value]


def plain(text: str) -> str:
    """Returns `text` in one line, with unprintable characters as escapes: `\\n`, `\\x1b`, `\\ud83d`. Backslashes stay,
    so an escaped text does not change.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in _KEPT else ascii(char)[1:-1] for char in text)


def shortened(text: str, limit: int) -> str:
    """Returns `text`, shortened in its middle: the end of a refusal is the remedy."""
    half = limit // 2
    return text if len(text) <= limit else f"{text[:half]} [{len(text) - 2 * half} characters] {text[-half:]}"


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's message, at most 200 characters; the type of an error without one. For an
    OSError: the system's message and the file name.
    """
    if isinstance(error, OSError) and error.strerror:
        name = os.path.basename(str(error.filename or ""))
        return f"{error.strerror} ({name})"[:200] if name else error.strerror[:200]
    message = str(error)
    if isinstance(message, Sentence) and len(message) <= 200:
        return message
    lines = message.strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__


def is_text(value: str) -> bool:
    """Returns False for text with a lone surrogate, which no file, encoder or log accepts."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def counted(number: int, noun: str) -> str:
    """Returns "1 clip", "2 clips", "1,000 clips"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def listed(names: Iterable[str], limit: int = 8) -> str:
    """Returns the first `limit` names and the number of others: "a.mp4, b.mp4 and 12 more"."""
    every = list(names)
    rest = len(every) - limit
    return ", ".join(every[:limit]) + (f" and {rest:,} more" if rest > 0 else "")


def tallied(words: Iterable[str], limit: int | None = None) -> str:
    """Returns the `limit` most frequent words with counts: "16 (9), 24 (2)"; None: all."""
    return ", ".join(f"{word} ({count})" for word, count in Counter(words).most_common(limit))


def logger(name: str) -> logging.Logger:
    """Returns a logger with one line per record."""
    found = logging.getLogger(name)
    found.addFilter(_as_plain)
    return found


def _as_plain(record: logging.LogRecord) -> bool:
    record.msg, record.args = plain(record.getMessage()), None
    if record.exc_info:
        lines = logging.Formatter().formatException(record.exc_info).splitlines()
        # Formatters print `exc_text` if it is set.
        record.exc_text = "\n".join(map(plain, lines))
    return True
