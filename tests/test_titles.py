"""Nodes are called by their titles wherever somebody reads of them, and never by their class ids."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

from code_trees import nodes_of

from tests.test_sentences import said as refused

ROOT = Path(__file__).parents[1]
LANGUAGES = sorted(folder.name for folder in (ROOT / "locales").iterdir() if folder.is_dir())
NODES = json.loads((ROOT / "locales" / "en" / "nodeDefs.json").read_text(encoding="utf-8"))
CORE = ("CLIPLoader", "CLIPVisionLoader", "UNETLoader", "VAELoader")
ID = re.compile(rf"(?<![A-Za-z0-9_./])({'|'.join([*NODES, *CORE])})(?![A-Za-z0-9_/=]|\.[A-Za-z0-9_])")


OWN_WORDS = re.compile(
    r"number format|time path|computes attention|(?<!all )\blinears\b|counts with|\bleft out\b|leaves? (it |them )?out"
    r"|(keep|keeps|other|another|own|one) (its |their |own )?shapes?\b",
    re.IGNORECASE,
)
"""what the field calls dtype, time embedding, attention backend, linear layers, scaled by, skipped and aspect ratio"""


def said(file: Path) -> Iterator[tuple[int, str]]:
    """Yields the texts of a module that are sentences, and no docstrings: with a blank in them."""
    silent = {id(node.value) for node in nodes_of(file) if isinstance(node, ast.Expr)}
    for node in nodes_of(file):
        if isinstance(node, ast.Constant) and id(node) not in silent:
            text = node.value
            if isinstance(text, str) and " " in text.strip():
                yield node.lineno, text


def test_what_nodes_and_engine_say_names_titles() -> None:
    files = [*sorted((ROOT / "nodes").rglob("*.py")), *sorted((ROOT / "wan_core").rglob("*.py"))]
    texts = [(f"{file.relative_to(ROOT)}:{line}", text) for file in files for line, text in said(file)]
    assert len(texts) > 2000
    assert [(place, text) for place, text in texts if ID.search(text)] == []


def test_so_do_tooltips_and_the_words_of_the_page_in_every_language() -> None:
    for language in LANGUAGES:
        for name in ("nodeDefs", "main"):
            words = json.loads((ROOT / "locales" / language / f"{name}.json").read_text(encoding="utf-8"))
            assert [text for text in _texts(words) if ID.search(text)] == [], f"{language}/{name}.json"


def test_so_do_the_help_pages() -> None:
    pages = sorted((ROOT / "web" / "docs").rglob("*.md"))
    assert len(pages) >= len(NODES)
    for page in pages:
        text = re.sub(r"```.*?```|`[^`]*`|\]\([^)]*\)", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        assert ID.findall(text) == [], page.relative_to(ROOT)


def test_tooltips_refusals_and_the_page_speak_in_the_words_of_the_field() -> None:
    sentences = [text for _, text in refused()]
    page = json.loads((ROOT / "locales" / "zh" / "main.json").read_text(encoding="utf-8"))
    english = [text for text in [*_texts(NODES), *_texts(page)] if text.isascii()]
    assert [text for text in [*english, *sentences] if OWN_WORDS.search(text)] == []


def _texts(words: object) -> Iterator[str]:
    """Yields every text of a dictionary of dictionaries; keys of the page's words are English sentences."""
    if isinstance(words, dict):
        for key, value in words.items():
            yield from (key,) if " " in key else ()
            yield from _texts(value)
    elif isinstance(words, str):
        yield words
