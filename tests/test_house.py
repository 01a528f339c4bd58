"""The rooms of the house: what each shows to the others, and that nothing leads in a circle. Read with `ast`, not run.

A new export is a decision: run once with WAN_TRAINER_UPDATE=1 and commit tests/fixtures/faces.json with it.
"""

from __future__ import annotations

import ast
import functools
import json
import os
import re
from collections import Counter
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import make_architecture
import pytest
from code_trees import nodes_of, tree_of

ROOT = Path(__file__).resolve().parent.parent
FACES = ROOT / "tests" / "fixtures" / "faces.json"
NODE_ROOMS = ("bridge", "engine", "runs", "routes")
"""lowest first; the nodes themselves stand above them"""


@functools.cache
def modules() -> dict[str, Path]:
    """Dotted name -> file, of every module of the engine and of the nodes."""
    found: dict[str, Path] = {}
    for file in sorted([*(ROOT / "wan_core").rglob("*.py"), *(ROOT / "nodes").rglob("*.py")]):
        parts = file.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def base_of(file: Path, node: ast.ImportFrom) -> str:
    """Returns the module that `node` imports from, with its name from the root."""
    package = file.relative_to(ROOT).parent.parts
    above = package[: len(package) - node.level + 1] if node.level else ()
    return ".".join([*above, *(node.module.split(".") if node.module else [])])


@functools.cache
def imported(file: Path) -> tuple[tuple[str, str], ...]:
    """(module, name) of every `from module import name`, with the module's name from the root."""
    nodes = [node for node in nodes_of(file) if isinstance(node, ast.ImportFrom)]
    return tuple((base_of(file, node), alias.name) for node in nodes for alias in node.names)


def listed(file: Path) -> list[str]:
    """What the `__init__` of a room offers: the names that it imports or defines without using them itself."""
    if file.name != "__init__.py":
        return []
    imports = [node for node in tree_of(file).body if isinstance(node, ast.ImportFrom) and node.level]
    names = {alias.name for node in imports for alias in node.names}
    names |= {name for node in tree_of(file).body for name in defined(node)}
    return sorted(names - {node.id for node in nodes_of(file) if isinstance(node, ast.Name)})


def faces() -> dict[str, list[str]]:
    """Room -> what its `__init__` offers; of a room without such a face, "file.name" of whatever others take of it."""
    rooms = [file for top in ("wan_core", "wan_core/importers", "nodes") for file in (ROOT / top).glob("*/__init__.py")]
    found: dict[str, list[str]] = {}
    for file in sorted(rooms):
        room = ".".join(file.relative_to(ROOT).parent.parts)
        found[room] = listed(file) or sorted(taken_by_file(room))
    return found


def taken_by_file(room: str) -> set[str]:
    """ "file.name" of all that files outside of `room` import from the files of it."""
    inside = room + "."
    outside = [(name, file) for name, file in modules().items() if name != room and not name.startswith(inside)]
    outside.append(("pack", ROOT / "__init__.py"))
    named = [f"{base}.{name}" for _, file in outside for base, name in imported(file)]
    return {name.removeprefix(inside) for name in named if name.startswith(inside)}


def test_what_a_room_offers_is_what_was_decided() -> None:
    if os.environ.get("WAN_TRAINER_UPDATE"):
        FACES.write_text(json.dumps(faces(), indent=1) + "\n", encoding="utf-8")
    decided = json.loads(FACES.read_text(encoding="utf-8"))
    assert {"wan_core.job", "wan_core.importers.trainers", *(f"nodes.{room}" for room in NODE_ROOMS)} <= set(decided)
    assert all(decided.values()), "a room that offers nothing was read wrongly"
    assert faces() == decided


def test_a_room_offers_nothing_that_no_other_room_takes() -> None:
    taken: set[tuple[str, str]] = set()
    users = [*modules().values(), *(ROOT / "scripts").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")]
    for file in [*users, ROOT / "__init__.py"]:
        room = ".".join(file.relative_to(ROOT).parts[:2])
        taken |= {(base, name) for base, name in imported(file) if base != room}
    offered = {room: listed(ROOT / room.replace(".", "/") / "__init__.py") for room in faces()}
    unused = [f"{room}: {name}" for room, names in offered.items() for name in names if (room, name) not in taken]
    assert not unused, "\n".join(["", *unused])


def test_a_name_that_one_file_uses_begins_with_an_underscore() -> None:
    """Rooms list what they offer, files do not: the underscore says it. Types stay open: who calls a function
    holds them without naming them."""
    files = [
        file for top in ("wan_core", "nodes", "scripts", "benchmarks", "tests") for file in (ROOT / top).rglob("*.py")
    ]
    words = {
        file: frozenset(re.findall(r"\w+", file.read_text(encoding="utf-8"))) for file in [*files, ROOT / "__init__.py"]
    }
    counts = Counter(word for found in words.values() for word in found)
    alone: list[str] = []
    for module, file in modules().items():
        assert file.name == "__init__.py" or "__all__" not in words[file], f"{file}: a file lists no names"
        names = [name for node in tree_of(file).body for name in defined(node)]
        alone += [f"{module}.{name}" for name in names if counts[name] == 1 and name.isupper() | name.islower()]
    assert not alone, "\n".join(["", *alone])


def defined(node: ast.stmt) -> list[str]:
    """The names without an underscore that a statement of a file gives."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        names = [node.name]
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = [target.id for target in targets if isinstance(target, ast.Name)]
    else:
        names = []
    return [name for name in names if not name.startswith("_")]


def test_docstrings_are_no_clauses() -> None:
    """A reader of "What of a dataset is not there yet" waits for the verb. What a property is may be said so."""
    clauses: list[str] = []
    said = 0
    for name, file in modules().items():
        for node in nodes_of(file):
            if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            text = ast.get_docstring(node) or ""
            said += bool(text)
            is_property = any("property" in ast.unparse(one) for one in getattr(node, "decorator_list", []))
            if not is_property and re.match(r"(What|Which|How|Where|Whether|Why|Who)\b", text):
                clauses.append(f"{name}: {text.splitlines()[0]}")
    assert said > 2000, "the docstrings were not read"
    assert not clauses, "\n".join(["", *clauses])


def test_no_import_leads_in_a_circle() -> None:
    known = modules()
    graph: dict[str, set[str]] = {}
    for name, file in known.items():
        needs = {f"{base}.{what}" if f"{base}.{what}" in known else base for base, what in imported(file)}
        graph[name] = {need for need in needs if need in known and need != name}
    assert sum(map(len, graph.values())) > 500, "the imports were not read"
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(" -> ".join(error.args[1])) from None


def test_the_rooms_of_the_nodes_import_only_rooms_below_them() -> None:
    found: list[str] = []
    for name, file in modules().items():
        parts = name.split(".")
        if parts[0] != "nodes" or parts[1:2] == [] or parts[1] not in NODE_ROOMS:
            continue
        below = NODE_ROOMS[: NODE_ROOMS.index(parts[1]) + 1]
        for base, what in imported(file):
            others = base.split(".") if base != "nodes" else ["nodes", what]
            if others[0] == "nodes" and others[1] not in below:
                found.append(f"{name} imports {base}.{what}")
    assert not found, "\n".join(["", *found])


def test_the_drawing_of_the_rooms_is_what_the_imports_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a change: python3 scripts/generators/make_architecture.py."""
    monkeypatch.setattr(make_architecture, "nodes_of", nodes_of)
    assert make_architecture.DRAWING.read_text(encoding="utf-8") == make_architecture.drawing()
