"""Words that leave the engine: whatever a file, a graph or a person put into them, they can be printed anywhere.

One place, because one that was forgotten is enough: ComfyUI's log cannot encode half of a character and its queue ends
with it, a line feed forges a record, ESC steers the terminal, and bidi marks turn a name around (rule S15).
"""

from __future__ import annotations

import logging
import os
import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

_KEPT = "\u00a0\u3000\u200c\u200d"
"""no-break and ideographic space, and the joiners that words and emoji are spelled with"""


_HOLE = re.compile(r"\{(\w+)\}")
_SENTENCES = "sentences"
"""key of a JSON object that holds, by text, the template and values of the sentences in it"""
_DEEPEST = 8
"""sentences inside each other that are read back from JSON"""


class Sentence(str):
    """A text in English with the template and the values it was filled from: the page fills its translation of the
    template with the same values, and never reads the text.

    `values` are texts, sentences and lists of them. Whatever formats or joins a sentence makes a plain text of it.
    """

    template: str
    values: dict[str, Any]

    def __new__(cls, text: str, template: str, values: dict[str, Any]) -> Sentence:
        sentence = super().__new__(cls, text)
        sentence.template, sentence.values = template, values
        return sentence

    def __str__(self) -> str:
        """Returns the sentence itself, so that `str(error)` keeps the values."""
        return self

    def __reduce__(self) -> tuple[type[Sentence], tuple[str, str, dict[str, Any]]]:
        return Sentence, ("".join(self), self.template, self.values)


def filled(template: str, /, **values: object) -> Sentence:
    """Returns a template with its `{holes}` filled; a list is joined by semicolons, a hole without a value stays."""
    known: dict[str, Any] = {}
    for name in _HOLE.findall(template):
        if name in values:
            value = values[name]
            known[name] = value if isinstance(value, list) else plain(str(value))
    texts = {name: "; ".join(value) if isinstance(value, list) else value for name, value in known.items()}
    return Sentence(_HOLE.sub(lambda hole: texts.get(hole[1], hole[0]), template), template, known)


def with_sentences(data: dict[str, Any]) -> dict[str, Any]:
    """Returns JSON data with the templates and values of its sentences, where it has any."""
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
    """Returns data of `with_sentences` after its way through JSON, its texts sentences again.

    A template and values that do not make the text are passed over: a file may hold whatever somebody wrote.
    """
    known = data.get(_SENTENCES)
    rest = {name: value for name, value in data.items() if name != _SENTENCES}
    made: dict[str, str] = {}
    return {name: _revived(value, known, made) for name, value in rest.items()} if isinstance(known, dict) else rest


def _revived(value: Any, known: dict[Any, Any], made: dict[str, str], depth: int = 0) -> Any:
    """`made` holds the texts that were looked at: each is made once, and one that contains itself ends there."""
    if isinstance(value, list):
        return [_revived(inner, known, made, depth) for inner in value]
    if isinstance(value, dict):
        return {name: _revived(inner, known, made, depth) for name, inner in value.items()}
    if not isinstance(value, str) or value in made:
        return made.get(value, value) if isinstance(value, str) else value
    said = known.get(value)
    made[value] = value
    if depth < _DEEPEST and isinstance(said, dict) and isinstance(said.get("values"), dict):
        values = {str(name): _revived(inner, known, made, depth + 1) for name, inner in said["values"].items()}
        sentence = filled(str(said.get("template")), **values)
        made[value] = sentence if sentence == value else value
    return made[value]


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
    said = str(error)
    if isinstance(said, Sentence) and len(said) <= 200:
        return said
    lines = said.strip().splitlines()
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


def tallied(words: Iterable[str], limit: int | None = None) -> str:
    """The `limit` most frequent words with their counts, most frequent first: "16 (9), 24 (2)"; None: all."""
    return ", ".join(f"{word} ({count})" for word, count in Counter(words).most_common(limit))


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
