"""What a user is refused with is a sentence, or two: what is wrong, where, and what to do or what it must be.

A sentence that is translated is translated in every language; a new one is English until somebody translates it.
"""

from __future__ import annotations

import ast
import re

import pytest
from code_trees import nodes_of
from environment import ROOT
from make_sentences import LANGUAGES, carried, check, problems
from refusals import (
    BASES,
    ROUTE,
    Module,
    alternatives,
    assigned,
    bare,
    has_words,
    kinds,
    locals_of,
    refusals,
    templates,
    text_of,
)

SAYS_WHAT_IS_WANTED = re.compile(
    r"[.:!]\s+\S"  # another sentence
    r"|; \S"
    r"|\b(must|needs?|such as|for example|of the form|is no |goes from|Example)\b"
    r"|\{\}\.?$"  # ends with what somebody else says
)
ANSWERS = {ROUTE, *BASES} - {"WanTrainerError"}
"""what a route answers a program, and the ends of sentences that another place begins"""
ENDED_ELSEWHERE = {"{} is not a cache set ({}).", "Reading {} was stopped."}
"""whoever asked for the file says what to do"""


def said() -> list[tuple[str, str]]:
    """Returns place and text of every refusal with a text of its own, its holes without names."""
    every = [(one.place, bare(one.text)) for one in refusals() if one.by and one.by not in ANSWERS]
    return [one for one in every if not _is_fragment(one[1]) and one[1] not in ENDED_ELSEWHERE]


def _is_fragment(text: str) -> bool:
    """Whether it is the end of a sentence that another place begins, such as `its checksum does not match`."""
    return bool(re.match(r"(its?|they) ", text)) and not text.endswith(".")


def test_every_refusal_says_what_to_do_or_what_it_must_be() -> None:
    found = said()
    assert len(found) > 550
    assert [one for one in found if not SAYS_WHAT_IS_WANTED.search(one[1])] == []


def test_what_goes_on_is_said_with_the_name_of_the_button() -> None:
    """Nothing on the page is called Queue."""
    texts = [
        (path.name, node.value)
        for folder in ("wan_core", "nodes")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for node in nodes_of(path)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    assert sum("press Run again" in text for _, text in texts) > 10
    asks_to_queue = re.compile(r"\bqueue( \w+)? (again|to go on)|\bQueue its", re.IGNORECASE)
    assert [one for one in texts if asks_to_queue.search(one[1])] == []


def test_every_refusal_ends_as_a_sentence_or_an_example() -> None:
    ends = re.compile(r"[.)!]$|\{\}$|Example: \S+")
    assert [one for one in said() if not ends.search(one[1].rstrip())] == []


def test_no_refusal_says_that_something_is_invalid_and_no_more() -> None:
    """Words that tell nobody what is the matter."""
    empty = re.compile(r"\b(invalid|illegal|unexpected error|something went wrong|oops)\b", re.IGNORECASE)
    assert [one for one in said() if empty.search(one[1])] == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_translated_refusal_is_said_in(language: str) -> None:
    assert check([language]) == []


def test_refusals_of_every_kind_are_in_the_list() -> None:
    listed = set(templates())
    assert {"CheckpointError", "FileError", "NewerRun", "NotFinite", "PlaceError"} <= kinds()
    assert "Stopped" not in kinds()
    for sentence in (
        "{name} {value} is out of range. Use {low} to {high}.",  # of a setting
        "This run is in use. Stop it first.",  # of a route
        'Did you mean "{close}"?',  # of a function that a refusal calls
        "No good step was saved.",  # of a name in the function
        "The two files are swapped",  # of one side of a choice
        "other programs off the GPU",  # of a list that is joined
    ):
        assert sentence in listed
    assert not [one for one in listed if not has_words(one) or one != one.strip()]
    assert len(listed) == len({bare(one) for one in listed})


def test_a_refusal_is_read_with_names_for_its_holes() -> None:
    code = """f"{path.name} holds {len(files)} of {path.name} and {", ".join(names)}; {fix if fix else 'none'}" + END"""
    node = ast.parse(code.replace('", "', "glue"), mode="eval").body
    constant = ast.parse('" Mend it."', mode="eval").body
    module = Module("a.py", ast.Module([], []), {"END": [constant], "fix": [ast.Constant("Do it twice.")]})
    text = "{name} holds {files} of {name2} and {names}; {fix} Mend it."
    assert text_of(node, module) == text
    assert list(alternatives(node, module, {})) == [text, "Do it twice.", "none"]


def test_what_is_wrong_with_a_translation_is_named() -> None:
    known = ["Lower {rate} of Wan Train Settings to 0.5.", "No {thing}s."]
    good = {known[0]: "把“Wan 训练设置”的 {rate} 调低到 0.5。", known[1]: "没有 {thing}s。"}
    assert problems("zh", known, set(known), good) == []
    assert problems("zh", known, {known[0]}, {known[0]: good[known[0]]}) == []
    for wrong, said in (
        ("no translation", None),
        ("other holes", "把“Wan 训练设置”调低到 0.5。"),
        ("lacks 0.5", "把“Wan 训练设置”的 {rate} 调低。"),
        ("lacks Wan 训练设置", "把 Wan Train Settings 的 {rate} 调低到 0.5。"),
        ("still English", known[0]),
        ("empty", " "),
    ):
        told = {**good, known[0]: said} if said else {known[1]: good[known[1]]}
        assert [one.split(":")[0].split(",")[0] for one in problems("zh", known, set(known), told)] == [wrong]
    assert problems("zh", known[1:], set(known), good) == [f"nobody says: {known[0]}"]


def test_a_hole_that_is_called_otherwise_keeps_its_translation() -> None:
    before = {"{a} of {b}": "{b} 的 {a}", "gone": "没了"}
    assert carried(["{one} of {two}", "new"], before) == {"{one} of {two}": "{two} 的 {one}"}


def test_a_table_that_a_function_goes_through_is_read() -> None:
    rows = 'ROWS = ((b"<", "a web page"), (b"PK", "an archive"))'
    tree = ast.parse(f"{rows}\ndef what(start):\n    for magic, words in ROWS:\n        return words")
    function = tree.body[1]
    module = Module("a.py", tree, assigned(tree.body))
    said = alternatives(ast.Name("words", ast.Load()), module, locals_of(function))
    assert list(said) == ["a web page", "an archive"]
