"""Settings with one value of another kind, and damaged copies of them: each always the same."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wan_core.importers import parse_document

JOBS = Path(__file__).parents[1] / "fixtures" / "jobs"
ODD: tuple[Any, ...] = ("many", "", {"a": 1}, {}, [1, "x"], [], 10**30, -7, -0.5, True, 1e308, "$X", "\u202e\n\x85")
"""what stands in place of a value"""


def sources() -> dict[str, str]:
    """The settings of the tests, by name; those of SimpleTuner that lie in one file each for itself."""
    found = {path.name: path.read_text(encoding="utf-8") for path in sorted(JOBS.iterdir()) if path.is_file()}
    more = json.loads(found.pop("simpletuner_examples.json"))
    return {**found, **{f"{name}.json": json.dumps(config) for name, config in more.items()}}


def mutations() -> Iterator[tuple[str, str]]:
    """(name, text) with one value put in place of another, for every value of every file; documents as JSON."""
    for name, text in sources().items():
        if name.endswith(".sh"):
            yield from _of_options(name, text)
        elif not name.endswith(".txt"):
            document = parse_document(name, text)
            ending = name.rpartition(".")[2]
            for path in _paths(document):
                for odd in ODD:
                    changed = json.loads(json.dumps(document))
                    _put(changed, path, odd)
                    yield _written(f"{name.rpartition('.')[0]}.{ending}", changed)


def _of_options(name: str, text: str) -> Iterator[tuple[str, str]]:
    for option in re.finditer(r"(--\w+)( [^-\s\\][^\s\\]*)?", text):
        for odd in ("", " many", " ''", " 1e308", " -7", " 99999999999999999999", " $X", " a b c", " [1,2]", "=x=y"):
            yield name, f"{text[: option.start()]}{option[1]}{odd}{text[option.end() :]}"


def _paths(value: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in inside:
        yield (*before, key)
        yield from _paths(inner, (*before, key))


def _put(document: Any, path: tuple[Any, ...], value: Any) -> None:
    for key in path[:-1]:
        document = document[key]
    document[path[-1]] = value


def _written(name: str, document: Any) -> tuple[str, str]:
    """JSON is YAML too; TOML is written by hand."""
    if not name.endswith(".toml"):
        return name, json.dumps(document)
    lines: list[str] = []
    tables = {key: value for key, value in document.items() if isinstance(value, dict)}
    lines += [f"{key} = {_toml(value)}" for key, value in document.items() if key not in tables]
    for key, table in tables.items():
        lines += [f"[{key}]", *(f"{inner} = {_toml(value)}" for inner, value in table.items())]
    return name, "\n".join(lines)


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)


def damaged(texts: dict[str, str], count: int, seed: int = 0) -> Iterator[tuple[str, str]]:
    """`count` copies of texts with letters taken out, doubled, swapped or put in."""
    draw = random.Random(seed)
    names = sorted(texts)
    signs = "'\"`$(){}[]<>|&;%!^@#=\\/- \n\t\0,:*~" + "é\u2028"
    for number in range(count):
        name = names[number % len(names)]
        text = texts[name]
        for _ in range(draw.randint(1, 12)):
            at, length = draw.randrange(len(text) + 1), draw.choice((1, 1, 2, 5, 40))
            other = draw.randrange(len(text) + 1)
            piece = draw.choice(("", draw.choice(signs), draw.choice(signs) * length, text[other : other + length]))
            text = text[:at] + piece + text[at + draw.choice((0, length)) :]
        yield name, text
