"""Files of the code as syntax trees, each read once in a process: most of what a rule about all of them costs."""

from __future__ import annotations

import ast
import gc
from functools import cache
from pathlib import Path


@cache
def tree_of(file: Path) -> ast.Module:
    """Returns the syntax tree of a file."""
    # None of a million nodes goes before the process does, and they would be searched for garbage as they are made.
    collects = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(file.read_text(encoding="utf-8"), file.name)
    finally:
        if collects:
            gc.enable()


@cache
def nodes_of(file: Path) -> tuple[ast.AST, ...]:
    """Returns the nodes of a file in the order of `ast.walk`."""
    return tuple(ast.walk(tree_of(file)))


@cache
def parents_in(file: Path) -> dict[ast.AST, ast.AST]:
    """Returns the node around each node of a file."""
    return {child: parent for parent in nodes_of(file) for child in ast.iter_child_nodes(parent)}
