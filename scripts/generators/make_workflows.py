"""Writes the shipped graphs of shipped_graphs/: workflows/NAME.json for the canvas and workflows/api/NAME.json.

    python3 scripts/generators/make_workflows.py          # writes both forms
    python3 scripts/generators/make_workflows.py --check  # exit code 1 when a file on disk is not what would be written

Widget positions come from tests/nodes/schemas.json, so a graph always matches the nodes. Standard library only.
Thumbnails: scripts/generators/make_thumbnails.py.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

from shipped_graphs import GRAPHS, NOTE, Graph, Link, Node
from shipped_graphs.core_nodes import CONTROL, CORE, FOLDERS, SINCE, SOCKET_ONLY, folder_of, url_of

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from wan_core.canvas import note_node, workflow_document

WORKFLOWS = ROOT / "workflows"
TITLED = "wan_trainer_title"
"""property with a title that the page translates: web/js/lib/page/titles.mjs"""


def schemas() -> dict[str, Any]:
    """Returns our pinned schemas and those of the core nodes in the graphs."""
    pinned = json.loads((ROOT / "tests" / "nodes" / "schemas.json").read_text(encoding="utf-8"))
    return {**pinned, **CORE}


def is_socket(entry: dict[str, Any]) -> bool:
    is_list = entry["type"] == "STRING" and entry.get("lazy", False)  # captions and names of Wan Save Captions
    return is_list or entry["type"].startswith("WAN_") or entry["type"] in SOCKET_ONLY


def api_form(graph: Graph, known: dict[str, Any]) -> dict[str, Any]:
    """Returns the graph for POST /prompt, with every widget written out."""
    ids = {key: str(number) for number, key in enumerate(graph.nodes, 1)}
    out = {}
    for key, node in graph.nodes.items():
        inputs = {}
        for entry in known[node.kind]["inputs"]:
            value = node.inputs.get(entry["name"], entry.get("default"))
            if isinstance(value, Link):
                inputs[entry["name"]] = [ids[value.node], value.slot]
            elif not is_socket(entry) and entry["name"] != CONTROL:
                inputs[entry["name"]] = value
        title = node.title or known[node.kind]["display_name"]
        out[ids[key]] = {"class_type": node.kind, "inputs": inputs, "_meta": {"title": title}}
    return out


def canvas_form(graph: Graph, known: dict[str, Any], version: str) -> dict[str, Any]:
    """Returns LiteGraph JSON for the canvas, with values of our nodes by position and by name."""
    ids = {key: number for number, key in enumerate(graph.nodes, 1)}
    links: list[list[Any]] = []
    nodes = []
    for key, node in graph.nodes.items():
        schema = known[node.kind]
        sockets = []
        for entry in schema["inputs"]:
            if not is_socket(entry):
                continue
            link = node.inputs.get(entry["name"])
            if isinstance(link, Link):
                given = known[graph.nodes[link.node].kind]["outputs"][link.slot]["type"]
                links.append([len(links) + 1, ids[link.node], link.slot, ids[key], len(sockets), given])
            sockets.append(
                {
                    "name": entry["name"],
                    "type": entry["type"],
                    "link": len(links) if isinstance(link, Link) else None,
                }
            )
        widgets = [e for e in schema["inputs"] if not is_socket(e)]
        values = {e["name"]: node.inputs.get(e["name"], e.get("default")) for e in widgets}
        nodes.append(
            {
                "id": ids[key],
                "type": node.kind,
                **({"title": node.title} if node.title else {}),
                "pos": list(node.at),
                "size": list(node.size),
                "flags": {"collapsed": True} if node.folded else {},
                "order": ids[key] - 1,
                "mode": 0,
                "inputs": sockets,
                "outputs": [{"name": o["name"], "type": o["type"], "links": []} for o in schema["outputs"]],
                "properties": properties(graph, node, widgets, version),
                "widgets_values": list(values.values()),
                **({} if node.kind in CORE else {"widgets_values_named": values}),
            }
        )
    for written, place in ((graph.note, NOTE), *graph.more_notes):
        text = re.sub(r"(?<=\S)\n(?!\n|- |\d+\. )", " ", written)
        note = note_node(len(nodes) + 1, "Read me", text, place[:2], place[2:])
        # The page recognises our notes by this property and translates them: web/js/lib/files/read_me.mjs.
        nodes.append({**note, "properties": {TITLED: note["title"]}})
    document = workflow_document(graph.name, nodes, links)
    if graph.app:
        shown = [[ids[key], widget] for key, widget in graph.app]
        document["extra"]["linearData"] = {"inputs": shown, "outputs": [ids["train"]]}
    return document


def properties(graph: Graph, node: Node, widgets: list[dict[str, Any]], version: str) -> dict[str, Any]:
    """Returns the node's pack and version, and the download of its model file."""
    core = node.kind in CORE
    found: dict[str, Any] = {"Node name for S&R": node.kind}
    pack, own = ("comfy-core", SINCE.get(node.kind, "0.3.75")) if core else ("wan-trainer", version)
    found |= {"cnr_id": pack, "ver": own}
    if core and node.title:
        found[TITLED] = node.title
    files = [
        (node.inputs[e["name"]], folder_of(node.kind, e["name"]))
        for e in widgets
        if e["name"] in FOLDERS.keys() & node.inputs.keys()
    ]
    models = [{"name": name, "url": url_of(name, folder), "directory": folder} for name, folder in files]
    return {**found, "models": models} if models and graph.downloads else found


def files() -> dict[Path, str]:
    """Returns every generated file with its text."""
    known = schemas()
    found = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    assert found, "pyproject.toml has no version"
    out = {}
    for graph in GRAPHS:
        forms = {
            WORKFLOWS / f"{graph.name}.json": canvas_form(graph, known, found[1]),
            WORKFLOWS / "api" / f"{graph.name}.json": api_form(graph, known),
        }
        out |= {path: json.dumps(data, indent=2, ensure_ascii=False) + "\n" for path, data in forms.items()}
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 when something would change")
    options = parser.parse_args()
    wrong = [p for p, text in files().items() if not p.is_file() or p.read_text(encoding="utf-8") != text]
    for path in wrong:
        print(("not up to date: " if options.check else "writes ") + path.relative_to(ROOT).as_posix())
        if not options.check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(files()[path], encoding="utf-8", newline="\n")
    return 1 if wrong and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
