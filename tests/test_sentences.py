"""What a user is refused with is a sentence, or two: what is wrong, where, and what to do or what it must be."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from wan_core import errors

ROOT = Path(__file__).parents[1]
REFUSALS = {
    name
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, Exception) and kind is not errors.Stopped
}
HOLE = "{}"
SAYS_WHAT_IS_WANTED = re.compile(
    r"[.:!]\s+\S"  # another sentence
    r"|; \S"
    r"|\b(must|needs?|such as|for example|of the form|is no |goes from|Example)\b"
    rf"|{re.escape(HOLE)}\.?$"  # ends with what somebody else says
)


def text_of(node: ast.expr) -> str | None:
    """Returns a text with holes for what is put in; None for what is no text here."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else HOLE for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        sides = [text_of(node.left), text_of(node.right)]
        return None if sides == [None, None] else "".join(HOLE if side is None else side for side in sides)
    return None


def refusals() -> Iterator[tuple[str, str]]:
    """Yields place and text of every refusal that is raised or made with a text of its own."""
    for folder in ("nodes", "wan_core"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and node.args and _name(node.func) in REFUSALS:
                    text = text_of(node.args[0])
                    if text is not None and not _is_fragment(text):
                        yield f"{file.relative_to(ROOT)}:{node.lineno}", text


def _name(called: ast.expr) -> str:
    return called.id if isinstance(called, ast.Name) else called.attr if isinstance(called, ast.Attribute) else ""


def _is_fragment(text: str) -> bool:
    """Whether it is the end of a sentence that another place begins, such as `its checksum does not match`."""
    return bool(re.match(r"(its?|they) ", text)) and not text.endswith(".")


def test_every_refusal_says_what_to_do_or_what_it_must_be() -> None:
    found = list(refusals())
    assert len(found) > 500
    assert [one for one in found if not SAYS_WHAT_IS_WANTED.search(one[1])] == []


def test_every_refusal_ends_as_a_sentence_or_an_example() -> None:
    ends = re.compile(r"[.)!]$|\{\}$|Example: \S+")
    assert [one for one in refusals() if not ends.search(one[1].rstrip())] == []


def test_no_refusal_says_that_something_is_invalid_and_no_more() -> None:
    """Words that tell nobody what is the matter."""
    empty = re.compile(r"\b(invalid|illegal|unexpected error|something went wrong|oops)\b", re.IGNORECASE)
    assert [one for one in refusals() if empty.search(one[1])] == []
