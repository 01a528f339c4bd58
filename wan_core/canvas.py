"""ComfyUI workflow documents: nodes, links and notes."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

_ZOOM = 0.7
"""zoom at which a workflow opens; below 8/14 ComfyUI's page draws nodes without text"""
_CORNER = (80, 130)
"""screen pixels between the canvas corner and the first node, which the page's bars leave visible"""
_TITLE = 30
_DARK = {"color": "#3b2f1c", "bgcolor": "#2a2318"}
"""colours of notes: on their default brown, newer pages write grey"""

Link = list[Any]
"""[number, source node, output, target node, input, type]; numbers count from 1"""


def workflow_document(identity: str, nodes: list[dict[str, Any]], links: list[Link]) -> dict[str, Any]:
    """Returns a workflow of `nodes`, numbered from 1 in order, and adds the links to their outputs.

    `identity` determines the document's id, by which the page recognises a workflow. The workflow opens at `_ZOOM`,
    with its upper left corner in view.
    """
    left, top = (min(node["pos"][side] for node in nodes) for side in (0, 1))
    offset = [round(_CORNER[0] / _ZOOM) - left, round(_CORNER[1] / _ZOOM) + _TITLE - top]
    for number, source, slot, *_ in links:
        nodes[source - 1]["outputs"][slot]["links"].append(number)
    return {
        "id": str(uuid.uuid5(uuid.NAMESPACE_URL, f"wan-trainer/{identity}")),
        "revision": 0,
        "last_node_id": len(nodes),
        "last_link_id": len(links),
        "nodes": nodes,
        "links": links,
        "groups": [],
        "config": {},
        "extra": {"ds": {"scale": _ZOOM, "offset": offset}},
        "version": 0.4,
    }


def workflow_node(
    number: int,
    kind: str,
    sockets: Mapping[str, tuple[str, tuple[int, int] | None]],
    outputs: Sequence[tuple[str, str]],
    links: list[Link],
    **more: Any,
) -> dict[str, Any]:
    """Returns a node and appends its links to `links`.

    `sockets`: input -> (type, (source node, output) or None). `outputs`: (name, type). `more`: pos, size, widgets ...
    """
    inputs: list[dict[str, Any]] = []
    for name, (type_name, source) in sockets.items():
        if source is not None:
            links.append([len(links) + 1, *source, number, len(inputs), type_name])
        inputs.append({"name": name, "type": type_name, "link": len(links) if source is not None else None})
    return {
        "id": number,
        "type": kind,
        "pos": [0, 0],
        "flags": {},
        "order": number - 1,
        "mode": 0,
        "inputs": inputs,
        "outputs": [{"name": name, "type": type_name, "links": []} for name, type_name in outputs],
        **more,
    }


def note_node(number: int, title: str, text: str, at: Sequence[int], size: Sequence[int]) -> dict[str, Any]:
    """Returns a Markdown note. `code` in `text` becomes bold, because Nodes 2.0 draws code illegibly."""
    bold = re.sub(r"`([^`*\n]+)`", r"**\1**", text)
    shown = {"title": title, "pos": list(at), "size": list(size), "properties": {}, "widgets_values": [bold]}
    return workflow_node(number, "MarkdownNote", {}, (), [], **shown, **_DARK)
