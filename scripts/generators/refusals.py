"""Reads out of the code whatever a user can be refused with: every sentence, with a named hole for what is put in.

A refusal is an exception that derives from WanTrainerError, or a route's Refused. What is put into its holes may be
words of ours as well: those that a name of the same function or module is given, and those that a function of ours
returns, are read too.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from code_trees import nodes_of, tree_of

ROOMS = ("nodes", "wan_core")
BASES = {"WanTrainerError", "PlaceError", "NotUtf8Error", "_DamagedError", "_UnfitError"}
"""what a refusal derives from; the last four are caught by a room, which puts their words into a refusal"""
NO_REFUSAL = {"Stopped"}
SETTING = "ConfigError"
"""what a config raises for a value that is refused"""
ROUTE = "Refused"
"""the exception of nodes/routes, whose sentence is its second argument"""
HOLE = re.compile(r"\{(\w+)\}")
IN_THE_TERMINAL = ("wan_core/cli/", "wan_core/selftest/")
"""rooms that speak to a terminal, which is English"""
LISTING = {"join", "items", "append"}
"""methods whose argument, or whose own object, is a list of what is said"""
APART = re.compile(
    r" ((?:W|If it ends again by itself, w)hat helps most, in this order: [^.]*\."
    r"|Saved steps are kept(; press Run again to resume)?\.)"
)
"""what the page takes off a failure, because it shows it otherwise: web/js/lib/run/told_apart.mjs"""
DEPTH = 4
"""how far the words of a hole are followed"""


class Said(NamedTuple):
    """A text and where it is said; `by` names the exception whose text it is, and is empty for a part of one."""

    place: str
    text: str
    by: str


class Module(NamedTuple):
    """A file of the code: its place, its tree, and the texts its names stand for."""

    place: str
    tree: ast.Module
    names: dict[str, list[ast.expr]]


@cache
def modules() -> tuple[Module, ...]:
    """Returns every file of the code, in order."""
    files = [file for room in ROOMS for file in sorted((ROOT / room).rglob("*.py"))]
    trees = [(file.relative_to(ROOT).as_posix(), tree_of(file)) for file in files]
    return tuple(Module(place, tree, assigned(tree.body)) for place, tree in trees)


def nodes_in(module: Module) -> tuple[ast.AST, ...]:
    """Returns the nodes of a file of the code."""
    return nodes_of(ROOT / module.place)


def assigned(body: list[ast.stmt]) -> dict[str, list[ast.expr]]:
    """Returns what the names of statements are given, those of a tuple one by one."""
    found: dict[str, list[ast.expr]] = {}
    for one in body:
        targets = one.targets if isinstance(one, ast.Assign) else []
        for target in targets:
            if isinstance(target, ast.Name):
                found.setdefault(target.id, []).append(one.value)  # type: ignore[attr-defined]
    return found


@cache
def kinds() -> frozenset[str]:
    """Returns the names of all exceptions that refuse something."""
    bases = {
        node.name: {name_of(base) for base in node.bases}
        for module in modules()
        for node in nodes_in(module)
        if isinstance(node, ast.ClassDef)
    }
    found = set(BASES)
    while more := {name for name, of in bases.items() if of & found} - found - NO_REFUSAL:
        found |= more
    return frozenset(found)


@cache
def functions() -> dict[str, list[tuple[Module, ast.FunctionDef]]]:
    """Returns the functions of the code by name."""
    found: dict[str, list[tuple[Module, ast.FunctionDef]]] = {}
    for module in modules():
        for node in nodes_in(module):
            if isinstance(node, ast.FunctionDef):
                found.setdefault(node.name, []).append((module, node))
    return found


def name_of(node: ast.expr) -> str:
    """Returns the last name of an expression: of `self.file.name` it is `name`; '' where there is none."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def text_of(node: ast.expr, module: Module | None = None) -> str | None:
    """Returns a text with named holes for what is put in; None for what is no text here.

    The constants of `module` that are a text stand in it as that.
    """
    parts = list(parts_of(node, module))
    if not any(isinstance(part, str) for part in parts):
        return None
    names: set[str] = set()
    return "".join(part if isinstance(part, str) else hole_of(part, names) for part in parts)


def parts_of(node: ast.expr, module: Module | None) -> Iterator[str | ast.expr]:
    """Yields the literal pieces of a text and, between them, what is put in."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        for part in node.values:
            yield from parts_of(part.value if isinstance(part, ast.FormattedValue) else part, module)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        yield from parts_of(node.left, module)
        yield from parts_of(node.right, module)
    else:
        constant = constant_of(node, module) if module else None
        yield from [node] if constant is None else parts_of(constant, module)


def constant_of(node: ast.expr, module: Module) -> ast.expr | None:
    """Returns the text that a constant stands for; None for any other expression."""
    if not isinstance(node, ast.Name) or not node.id.isupper():
        return None
    found = module.names.get(node.id) or imported(node.id)
    return found[0] if len(found) == 1 and isinstance(found[0], ast.Constant | ast.JoinedStr | ast.BinOp) else None


def hole_of(node: ast.expr, names: set[str]) -> str:
    """Returns a hole with a name that says what is in it and is not among `names` yet."""
    word = word_of(node) or "value"
    name = next(name for name in (word, *(f"{word}{n}" for n in range(2, 99))) if name not in names)
    names.add(name)
    return f"{{{name}}}"


def word_of(node: ast.expr) -> str:
    """Returns the name of what an expression is about."""
    if isinstance(node, ast.Call):
        about = [word for word in map(word_of, node.args) if word]
        return about[0] if about else word_of(node.func.value) if isinstance(node.func, ast.Attribute) else ""
    if isinstance(node, ast.Subscript):
        return word_of(node.value)
    if isinstance(node, ast.BinOp):
        return word_of(node.left) or word_of(node.right)
    if isinstance(node, ast.IfExp):
        return word_of(node.body) or word_of(node.orelse)
    return name_of(node).strip("_").lower()


def alternatives(node: ast.expr, module: Module, local: dict[str, list[ast.expr]], depth: int = DEPTH) -> Iterator[str]:
    """Yields every text that an expression can be, and those that its holes can be."""
    if not depth:
        return
    if (several := members(node)) is not None:
        for value in several:
            yield from alternatives(value, module, local, depth)
        return
    if isinstance(node, ast.Name):
        for value in local.get(node.id) or module.names.get(node.id) or imported(node.id):
            yield from alternatives(value, module, local, depth - 1)
        return
    if isinstance(node, ast.Call):
        yield from returned(node, depth)
        return
    if isinstance(node, ast.Subscript):
        for value in column(node, module):
            yield from alternatives(value, module, local, depth - 1)
        return
    text = text_of(node, module)
    if text is not None:
        yield text
        for part in parts_of(node, module):
            if not isinstance(part, str):
                yield from alternatives(part, module, local, depth)


def members(node: ast.expr) -> list[ast.expr] | None:
    """Returns the expressions of which one, or all, are said: choices, lists, what is joined; None for any other."""
    if isinstance(node, ast.IfExp):
        return [node.body, node.orelse]
    if isinstance(node, ast.BoolOp):
        return node.values
    if isinstance(node, ast.List | ast.Tuple):
        return [one.value if isinstance(one, ast.Starred) else one for one in node.elts]
    if isinstance(node, ast.Dict):
        return [key for key in node.keys if key]
    if isinstance(node, ast.ListComp):
        return [node.generators[0].iter]
    if isinstance(node, ast.Call) and name_of(node.func) in LISTING and isinstance(node.func, ast.Attribute):
        return node.args or [node.func.value]
    return None


def column(node: ast.Subscript, module: Module) -> list[ast.expr]:
    """Returns what stands in a place of every row of a constant: `ROWS[1]` as `locals_of` writes it."""
    place = node.slice.value if isinstance(node.slice, ast.Constant) else None
    found = module.names.get(name_of(node.value), [])
    rows = [row for one in found if isinstance(one, ast.Tuple | ast.List) for row in one.elts]
    rows = [row.elts for row in rows if isinstance(row, ast.Tuple)]
    return [row[place] for row in rows if isinstance(place, int) and place < len(row)]


@cache
def imported(name: str) -> list[ast.expr]:
    """Returns what a constant of another file is given, where there is one of that name."""
    found = [module.names[name] for module in modules() if name.isupper() and name in module.names]
    return found[0] if len(found) == 1 else []


def returned(call: ast.Call, depth: int) -> Iterator[str]:
    """Yields the texts that a function of ours returns, where there is one of that name."""
    name = name_of(call.func)
    found = functions().get(name, [])
    if len(found) == 1:
        module, function = found[0]
        for node in ast.walk(function):
            if isinstance(node, ast.Return) and node.value is not None:
                yield from alternatives(node.value, module, locals_of(function), depth - 1)


@cache
def locals_of(function: ast.AST) -> dict[str, list[ast.expr]]:
    """Returns what the names of a function are given, wherever in it."""
    found = assigned([node for node in ast.walk(function) if isinstance(node, ast.stmt)])
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "append":
            found.setdefault(name_of(node.func.value), []).extend(node.args)
        if isinstance(node, ast.For) and isinstance(node.iter, ast.Name) and isinstance(node.target, ast.Tuple):
            for place, name in enumerate(node.target.elts):
                row = ast.Subscript(node.iter, ast.Constant(place), ast.Load())
                found.setdefault(name_of(name), []).append(row)
    return found


def calls() -> Iterator[tuple[str, Module, ast.expr, dict[str, list[ast.expr]]]]:
    """Yields every exception that refuses: its name, its file, its text, and the names of the function around it."""
    for module in modules():
        inside = {id(node): f for f in nodes_in(module) if isinstance(f, ast.FunctionDef) for node in ast.walk(f)}
        for node in nodes_in(module):
            if not isinstance(node, ast.Call):
                continue
            name, function = name_of(node.func), inside.get(id(node))
            said = node.args[1:2] if name == ROUTE else node.args[:1] if name in kinds() else []
            for one in said:
                yield name, module, one, locals_of(function) if function else {}


def settings() -> Iterator[Said]:
    """Yields how settings refuse a value: `refusal=` at a field, `_refusals` of a config."""
    for module in modules():
        for node in nodes_in(module):
            made: list[ast.expr] = []
            if isinstance(node, ast.keyword) and node.arg == "refusal":
                made = [node.value]
            elif isinstance(node, ast.Assign) and [name_of(one) for one in node.targets] == ["_refusals"]:
                made = node.value.elts if isinstance(node.value, ast.Tuple) else []
            for text in filter(None, (text_of(one, module) for one in made)):
                yield Said(f"{module.place}:{node.value.lineno}", re.sub(r"\{(\w+)[^{}]*\}", r"{\1}", text), SETTING)  # type: ignore[attr-defined]


@cache
def refusals() -> tuple[Said, ...]:
    """Returns every text that a refusal is or has in it, in the order of the code."""
    return (*raised(), *settings())


def raised() -> Iterator[Said]:
    """Yields the texts of exceptions."""
    for name, module, node, local in calls():
        whole = text_of(node, module)
        for text in dict.fromkeys(alternatives(node, module, local)):
            yield Said(f"{module.place}:{node.lineno}", text, name if text == whole else "")


def has_words(text: str) -> bool:
    """Returns whether there is something to translate: two words or more, and no options of a command."""
    return (
        not text.startswith("-") and len(re.findall(r"(?<![\w./])[A-Za-z]{2,}(?![\w/]|\.\w)", HOLE.sub("", text))) > 1
    )


def bare(text: str) -> str:
    """Returns a text with nameless holes: what it is known by, whatever the names in the code are."""
    return HOLE.sub("{}", text)


def templates() -> list[str]:
    """Returns every text to translate, once, in the order of the code."""
    found: dict[str, str] = {}
    for said in refusals():
        text = APART.sub("", said.text).strip()
        if has_words(text) and not said.place.startswith(IN_THE_TERMINAL):
            found.setdefault(bare(text), text)
    return list(found.values())
