"""What a user is refused with is a sentence, or two: what is wrong, where, and what to do or what it must be.

A sentence is translated in every language or in none: `wanTrainerServer` of locales/<language>/main.json, by template.
"""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache

import pytest
from code_trees import nodes_of
from environment import ROOT

LANGUAGES = ("es", "ja", "ko", "zh")
FILES = [path for room in ("nodes", "wan_core") for path in sorted((ROOT / room).rglob("*.py"))]
HOLE = re.compile(r"\{\w+\}")
SAYS_WHAT_IS_WANTED = re.compile(
    r"[.:!]\s+\S"  # another sentence
    r"|; \S"
    r"|\b(must|needs?|such as|for example|of the form|is no |goes from|Example)\b"
    r"|\{\}\.?$"  # ends with what somebody else says
)
ENDED_ELSEWHERE = {"{} is not a cache set ({}).", "Reading {} was stopped."}
"""whoever asked for the file says what to do"""
REFUSES = re.compile(
    r"(Config|Checkpoint|Dataset|Cache|Dependency|Placement|Export|Training|File|Unreadable|NothingUsable|DataHalf"
    r"|UnknownSettings|NotOfMusubi|WanTrainer|TooSlow)Error|OutOfMemory|RankLost|NotFinite|ForeignRun|NewerRun"
    r"|Gone|Unreachable"
)
"""exceptions that derive from WanTrainerError"""


def text_of(node: ast.expr) -> str:
    """Returns a text with `{}` for what is put in; "" for what is no text here."""
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
    return HOLE.sub("{}", node.value) if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def said() -> Iterator[tuple[str, str]]:
    """Yields place and text of every refusal with a text of its own."""
    for path in FILES:
        for node in nodes_of(path):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
                text = text_of(node.args[0])
                name = node.func.id
                is_fragment = re.match(r"(its?|they) ", text) and not text.endswith(".")
                if REFUSES.fullmatch(name) and text and not is_fragment:
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", text


@cache
def read(language: str, name: str) -> dict[str, dict[str, str]]:
    return json.loads((ROOT / "locales" / language / f"{name}.json").read_text(encoding="utf-8"))


def sentences_of(language: str) -> dict[str, str]:
    """Returns the translations of what the server says, by template."""
    return read(language, "main")["wanTrainerServer"]


@cache
def texts() -> set[str]:
    """Returns every text of the code, without blanks around it."""
    constants = (node for path in FILES for node in nodes_of(path) if isinstance(node, ast.Constant))
    return {node.value.strip() for node in constants if isinstance(node.value, str)}


def test_every_refusal_says_what_to_do_or_what_it_must_be() -> None:
    found = [one for one in said() if one[1] not in ENDED_ELSEWHERE]
    assert len(found) > 500
    assert [one for one in found if not SAYS_WHAT_IS_WANTED.search(one[1])] == []


def test_what_goes_on_is_said_with_the_name_of_the_button() -> None:
    """Nothing on the page is called Queue."""
    assert sum("press Run again" in text for text in texts()) > 8
    asks_to_queue = re.compile(r"\bqueue( \w+)? (again|to go on)|\bQueue its", re.IGNORECASE)
    assert [text for text in texts() if asks_to_queue.search(text)] == []


def test_every_refusal_ends_as_a_sentence_or_an_example() -> None:
    ends = re.compile(r"[.)!]$|\{\}$|Example: \S+")
    assert [one for one in said() if not ends.search(one[1].rstrip())] == []


def test_no_refusal_says_that_something_is_invalid_and_no_more() -> None:
    """Words that tell nobody what is the matter."""
    empty = re.compile(r"\b(invalid|illegal|unexpected error|something went wrong|oops)\b", re.IGNORECASE)
    assert [one for one in said() if empty.search(one[1])] == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_sentence_is_translated_everywhere_or_nowhere(language: str) -> None:
    translated = sentences_of(language)
    assert sorted(translated) == sorted(sentences_of("zh"))
    assert [template for template in translated if template not in texts()] == [], "nobody says"
    for template, words in translated.items():
        assert words.strip() == words != "", template
        assert words != template
        assert Counter(HOLE.findall(template)) == Counter(HOLE.findall(words)), template
        assert [one for one in kept(template, language) if one not in words] == [], template


def kept(template: str, language: str) -> list[str]:
    """Returns what stands in a translation too: ids, options of a command, endings of files, numbers, nodes' titles."""
    plain = HOLE.sub(" ", template)
    codes = re.findall(r"--[a-z][a-z-]*|\b[A-Za-z]\w*_\w+\b|\.[a-z]{2,}\b|\d+(?:\.\d+)?", plain)
    english, own = read("en", "nodeDefs"), read(language, "nodeDefs")
    titles = {short(node["display_name"]): short(own[name]["display_name"]) for name, node in english.items()}
    return [*codes, *(title for title_in_english, title in titles.items() if title_in_english in plain)]


def short(title: str) -> str:
    """Returns a node's title without what is in brackets."""
    return re.split(r" ?[(（]", title)[0]
