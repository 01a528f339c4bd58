"""What is wrong with a translated nodeDefs.json, told by reading: `problems(english, translated, shapes, language)`.

Numbers, identifiers and the values a person types must stand in a translation as they stand in the English text.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import Any

from make_locales import Definitions, entries

ALLOWED = {
    "vae": "a name of its own in every language",
    "clip": "the text encoder CLIP; the core nodes keep the name too",
    "lora": "a name of its own in every language",
    "cfg": "what every sampler calls it; the core nodes keep the name too",
    "alpha": "what every LoRA trainer calls it",
}
"""names that may be the same as in English (upper and lower case aside) -> why"""

LONGEST_LABEL = 22
"""columns a widget has room for beside its value; an East Asian character takes two"""

SCRIPT = {"zh": r"[\u4e00-\u9fff]", "ja": r"[\u3040-\u30ff]", "ko": r"[\uac00-\ud7a3]"}
"""characters that a sentence of the language cannot do without"""
ENGLISH_WORDS = r"\b(the|of|with|each|which|what|from|without|when|only|every|are|is|and)\b"
COUNTED = {"1", "2", "3"}
"""what English says in a word (one clip, both models, three bits) and other languages in a digit"""
SPECIAL = r"[{}@|]"
"""what vue-i18n reads as syntax instead of showing it"""

_NUMBER = r"(?<![\w.])\d+(?:\.\d+)?(?:e-?\d+)?|(?<=[A-Za-z_])\d+"
_TOKEN = r"[\w.:/\\*-]+"
_IDENTIFIER = r"_|\\|[a-z0-9][A-Z]|[A-Z]{2}|^\.[a-z]|[a-z]\.[a-z*]|\w/[\w*]|^[a-z]+\d"


def numbers(text: str) -> set[str]:
    """Every number of a text, as written."""
    return set(re.findall(_NUMBER, text))


def identifiers(text: str) -> set[str]:
    """Names of files, nodes, inputs, packages and formats in an English text."""
    words = {word.strip(".:") for word in re.findall(_TOKEN, text.replace("'s", ""))}
    return {word for word in words if word and not word[0].isdigit() and re.search(_IDENTIFIER, word)}


def quoted_values(text: str, shape: dict[str, Any]) -> set[str]:
    """What a person chooses or types, as far as an English tooltip names it: options, quoted text, defaults."""
    found = set(re.findall(r"(?:^|[.;] )([a-z0-9][\w -]*):", text)) | set(re.findall(r'"([^"]*)"', text))
    options = [str(option) for option in shape.get("options", ())]
    default = shape.get("default")
    typed = [default] if shape.get("type") == "STRING" and default else []
    words = [word for word in (*options, *typed) if re.search(rf"(?<!\w){re.escape(word)}(?::|,| \()", text)]
    return found | set(words)


def columns(text: str) -> int:
    """Width of a text; an East Asian character takes two columns."""
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text)


def problems(english: Definitions, translated: Definitions, shapes: dict[str, Any], language: str) -> list[str]:
    """One line for each thing that is wrong."""
    source, found = entries(english), entries(translated)
    lines = [f"{name}: is missing" for name in source if name not in found]
    lines += [f"{name}: is nothing the nodes have" for name in found if name not in source]
    for name in (name for name in source if name in found):
        if source[name].keys() != found[name].keys():
            lines.append(f"{name}: has {sorted(found[name])}, needs {sorted(source[name])}")
            continue
        shape = _shape(shapes, name)
        for key, text in found[name].items():
            lines += [f"{name}.{key}: {why}" for why in _wrong(key, source[name][key], text, shape, language)]
    return [*lines, *_uneven(source, found), *_misnamed(found)]


def _shape(shapes: dict[str, Any], name: str) -> dict[str, Any]:
    node, _, rest = name.partition(".inputs.")
    inputs = shapes.get(node, {}).get("inputs", []) if rest else []
    return next((entry for entry in inputs if entry["name"] == rest), {})


def _wrong(key: str, source: str, text: str, shape: dict[str, Any], language: str) -> Iterator[str]:
    label = key in ("name", "display_name")
    if not text.strip():
        yield "is empty"
    if text.casefold() == source.casefold() and not (label and text.casefold() in ALLOWED):
        yield f"is the English text: {text!r}"
    if found := re.search(SPECIAL, text):
        yield f"{found[0]!r} would be read as syntax"
    if key == "name" and columns(text) > LONGEST_LABEL:
        yield f"{text!r} takes {columns(text)} columns, there is room for {LONGEST_LABEL}"
    if not label:
        yield from _wrong_sentence(source, text, shape, language)


def _wrong_sentence(source: str, text: str, shape: dict[str, Any], language: str) -> Iterator[str]:
    if language in SCRIPT and not re.search(SCRIPT[language], text):
        yield f"is not {language}: {text!r}"
    if language not in SCRIPT and (left := re.search(ENGLISH_WORDS, text.replace(str(shape.get("default")), ""))):
        yield f"English is left: {left[0]!r} in {text!r}"
    if numbers(source) - numbers(text) or numbers(text) - numbers(source) - COUNTED:
        yield f"numbers are {sorted(numbers(text))}, in English {sorted(numbers(source))}"
    if lost := sorted(word for word in identifiers(source) if word.removesuffix("s") not in text):  # GPUs: GPU
        yield f"{lost} must stand in it"
    for value in sorted(quoted_values(source, shape)):
        if value not in text:
            yield f"the value {value!r} must stand in it as it is typed"


def _uneven(source: dict[str, dict[str, str]], found: dict[str, dict[str, str]]) -> Iterator[str]:
    """The same words mean the same thing wherever they stand."""
    first: dict[str, str] = {}
    for name, entry in source.items():
        key = repr(sorted(entry.items()))
        if name in found and found[name] != found.get(first.setdefault(key, name), found[name]):
            yield f"{name}: differs from {first[key]}, whose English is the same"


def _misnamed(found: dict[str, dict[str, str]]) -> Iterator[str]:
    """Where a text names another input as "label (id)", the label is the one that input has."""
    for name, entry in found.items():
        for text in (entry.get("tooltip", ""), entry.get("description", "")):
            for match in re.finditer(r"[(（](\w+)[)）]", text):
                other = found.get(f"{name.split('.')[0]}.inputs.{match[1]}")
                before = text[: match.start()].rstrip(" ”»").casefold()
                if other and not before.endswith(other["name"].casefold()):
                    yield f"{name}: calls {match[1]} otherwise than {other['name']!r}"
