"""web/js/lib/values/orders.mjs: the widgets of every node in each order they have ever had, the newest first.

Workflows saved before values were saved by name hold positions; the page looks here which order they were written in.
An order that was once in this file stays: `source` adds the present one in front and drops none.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

FILE = Path(__file__).resolve().parent.parent.parent / "web" / "js" / "lib" / "values" / "orders.mjs"
KINDS = {"INT", "FLOAT", "STRING", "BOOLEAN", "COMBO"}
HEAD = """// @ts-check
/**
 * Every node of ours, with its widgets in each order they have had, the newest first.
 * Written by scripts/generators/make_workflows.py, which only adds: saved workflows hold such positions.
 * @type {Record<string, string[]>}
 */
// biome-ignore format: one order a line, whatever their number
export const ORDERS = {
"""
_NODE = re.compile(r"^  (\w+): \[\n(.*?)^  \],$", re.MULTILINE | re.DOTALL)


def widgets(schema: dict[str, Any]) -> list[str]:
    """Names of a node's widgets in order, from its entry in tests/nodes/schemas.json."""
    return [entry["name"] for entry in schema["inputs"] if entry["type"] in KINDS]


def read_orders() -> dict[str, list[str]]:
    """The orders of the file, each as names with commas between."""
    text = FILE.read_text(encoding="utf-8") if FILE.is_file() else ""
    return {node: json.loads(f"[{body.strip().rstrip(',')}]") for node, body in _NODE.findall(text)}


def source(schemas: dict[str, Any]) -> str:
    """The file as it should be."""
    known = read_orders()
    for node, schema in schemas.items():
        now = ",".join(widgets(schema))
        known[node] = list(dict.fromkeys(order for order in (now, *known.get(node, [])) if order))
    lines = [
        line
        for node, orders in sorted(known.items())
        for line in (f"  {node}: [", *(f"    {json.dumps(order)}," for order in orders), "  ],")
    ]
    return HEAD + "\n".join(lines) + "\n};\n"
