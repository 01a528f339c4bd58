"""Draws docs/images/rooms.svg from the imports: `python3 scripts/generators/make_architecture.py [--check]`.

A box is a room of the engine or of the nodes; its row is the longest chain of imports below it. A line leads down to a
room that is imported, unless other lines lead there too (transitive reduction). Files without a room (errors, config,
flow, ...) are not drawn: every room may import them.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parents[2]
DRAWING = ROOT / "docs" / "images" / "rooms.svg"
WIDTH, ROW, BOX, HIGH = 1000, 54, 104, 26
ENGINE, NODES = "#dbe7f5", "#f5e6d3"
"""fill colours of rooms of wan_core and of nodes"""


def room_of(parts: tuple[str, ...]) -> str | None:
    """Returns the room of a dotted name; None for a file outside of every room."""
    if parts[:1] == ("nodes",):
        return f"nodes/{parts[1]}" if len(parts) > 1 and (ROOT / "nodes" / parts[1]).is_dir() else "nodes"
    if parts[:1] == ("wan_core",) and len(parts) > 1 and (ROOT / "wan_core" / parts[1]).is_dir():
        return parts[1]
    return None


def nodes_of(file: Path) -> Iterable[ast.AST]:
    """Returns the nodes of a file."""
    return ast.walk(ast.parse(file.read_text(encoding="utf-8")))


def imports() -> dict[str, set[str]]:
    """Returns room -> rooms that its files import."""
    needs: dict[str, set[str]] = {}
    for file in sorted([*(ROOT / "wan_core").rglob("*.py"), *(ROOT / "nodes").rglob("*.py")]):
        parts = file.relative_to(ROOT).with_suffix("").parts
        room = room_of(parts)
        if room is None:
            continue
        needs.setdefault(room, set())
        for node in nodes_of(file):
            if not isinstance(node, ast.ImportFrom) or not node.level:
                continue
            base = parts[: len(parts) - node.level] + tuple((node.module or "").split(".") if node.module else ())
            for alias in node.names:
                other = room_of((*base, alias.name))
                if other and other != room:
                    needs[room].add(other)
    return needs


def below(needs: dict[str, set[str]], room: str) -> set[str]:
    """Returns every room that `room` imports, directly or not."""
    found: set[str] = set()
    waiting = [*needs[room]]
    while waiting:
        one = waiting.pop()
        if one not in found:
            found.add(one)
            waiting += needs[one]
    return found


def levels(needs: dict[str, set[str]]) -> list[list[str]]:
    """Returns the rooms in rows, the lowest first; a row is sorted by the positions of the rooms it imports."""
    height: dict[str, int] = {}

    def measured(room: str) -> int:
        if room not in height:
            height[room] = 1 + max((measured(other) for other in sorted(needs[room])), default=-1)
        return height[room]

    rows: list[list[str]] = [[] for _ in range(1 + max(map(measured, sorted(needs))))]
    for room in sorted(needs):
        rows[height[room]].append(room)
    place: dict[str, float] = {}
    for row in rows:
        row.sort(
            key=lambda room: (sum(place.get(o, 0.5) for o in sorted(needs[room])) / max(1, len(needs[room])), room)
        )
        place |= {room: (index + 1) / (len(row) + 1) for index, room in enumerate(row)}
    return rows


def drawing() -> str:
    """Returns the SVG."""
    needs = imports()
    rows = levels(needs)
    height = len(rows) * ROW + 20
    at: dict[str, tuple[float, float]] = {}
    for number, row in enumerate(rows):
        for index, room in enumerate(row):
            at[room] = ((index + 1) * WIDTH / (len(row) + 1), height - (number + 1) * ROW + 10)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif">',
        "<!-- written by scripts/generators/make_architecture.py -->",
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
    ]
    for room in sorted(needs):
        through = set().union(*(below(needs, other) for other in needs[room]))
        for other in sorted(needs[room] - through):
            (x, y), (to_x, to_y) = at[room], at[other]
            y += HIGH
            curve = f"M{x:.0f} {y:.0f} C{x:.0f} {y + 22:.0f} {to_x:.0f} {to_y - 22:.0f} {to_x:.0f} {to_y:.0f}"
            parts.append(f'<path d="{curve}" fill="none" stroke="#888" stroke-width="1.2"/>')
    for room, (x, y) in sorted(at.items()):
        colour = NODES if room.startswith("nodes") else ENGINE
        parts += [
            f'<rect x="{x - BOX / 2:.0f}" y="{y:.0f}" width="{BOX}" height="{HIGH}" rx="5" fill="{colour}"'
            ' stroke="#557"/>',
            f'<text x="{x:.0f}" y="{y + 17:.0f}" text-anchor="middle" font-size="13">{escape(room)}</text>',
        ]
    return "\n".join([*parts, "</svg>", ""])


def main(arguments: list[str]) -> int:
    """Writes the drawing; with --check returns 1 where it differs from the imports."""
    if "--check" in arguments:
        return int(DRAWING.read_text(encoding="utf-8") != drawing())
    DRAWING.write_text(drawing(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
