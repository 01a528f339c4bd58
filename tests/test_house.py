"""The rooms of the house: what each shows to the others, and that nothing leads in a circle. Read with `ast`, not run.

A new export is a decision: run once with WAN_TRAINER_UPDATE=1 and commit tests/fixtures/faces.json with it.
"""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FACES = ROOT / "tests" / "fixtures" / "faces.json"
NODE_ROOMS = ("bridge", "engine", "runs", "routes")
"""lowest first; the nodes themselves stand above them"""


def modules() -> dict[str, Path]:
    """Dotted name -> file, of every module of the engine and of the nodes."""
    found: dict[str, Path] = {}
    for file in sorted([*(ROOT / "wan_core").rglob("*.py"), *(ROOT / "nodes").rglob("*.py")]):
        parts = file.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def imported(file: Path) -> Iterator[tuple[str, str]]:
    """(module, name) of every `from module import name`, with the module's name from the root."""
    package = file.relative_to(ROOT).parent.parts
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*above, *(node.module.split(".") if node.module else [])])
            yield from ((base, alias.name) for alias in node.names)


def faces() -> dict[str, list[str]]:
    """Room -> what its `__init__` offers."""
    found: dict[str, list[str]] = {}
    for file in sorted((ROOT / "wan_core").glob("*/__init__.py")):
        names: list[str] = []
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                names = ast.literal_eval(node.value)
        found[f"wan_core.{file.parent.name}"] = sorted(names)
    return found


def test_what_a_room_offers_is_what_was_decided() -> None:
    if os.environ.get("WAN_TRAINER_UPDATE"):
        FACES.write_text(json.dumps(faces(), indent=1) + "\n", encoding="utf-8")
    decided = json.loads(FACES.read_text(encoding="utf-8"))
    assert len(decided) > 12
    assert faces() == decided


def test_a_room_offers_nothing_that_no_other_room_takes() -> None:
    taken: set[tuple[str, str]] = set()
    users = [*modules().values(), *(ROOT / "scripts").glob("*.py"), *(ROOT / "benchmarks").glob("*.py")]
    for file in users:
        room = ".".join(file.relative_to(ROOT).parts[:2])
        taken |= {(base, name) for base, name in imported(file) if base != room}
    unused = [f"{room}: {name}" for room, names in faces().items() for name in names if (room, name) not in taken]
    assert not unused, "\n".join(["", *unused])


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
