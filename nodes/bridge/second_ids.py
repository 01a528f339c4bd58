"""A second, prefixed id of every node, in case another pack uses the first.

`LoadWanModel` is also a node of VideoX-Fun. ComfyUI has one list of ids, in which the last pack silently replaces the
first. This pack leaves a taken id to the other pack, registers every node as `WanTrainer_<id>` too, and names taken ids
in the log and in the route /wan_trainer/ids. Menus hide the second id unless the first is taken.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from comfy_api.latest import io

from ...wan_core.words import logger

PREFIX = "WanTrainer_"

_log = logger(__name__)

Node = type[io.ComfyNode]


class TakenIds:
    """Ids of our nodes that other packs use. Reads ComfyUI's list each time, because packs load before and after."""

    def __init__(self, nodes: list[Node]) -> None:
        self._nodes = {_id_of(node): node for node in nodes}

    def free(self) -> list[Node]:
        """Returns the nodes whose first id no other pack uses."""
        taken = self.by_pack()
        return [node for node_id, node in self._nodes.items() if node_id not in taken]

    def by_pack(self) -> dict[str, str]:
        """Returns taken short id -> pack, as ComfyUI names packs ("custom_nodes.VideoX-Fun")."""
        return {
            node_id: str(getattr(holder, "RELATIVE_PYTHON_MODULE", "") or holder.__module__)
            for node_id, node in self._nodes.items()
            if (holder := _all_nodes().get(node_id)) is not None and holder is not node
        }

    async def log_taken(self, _app: Any = None) -> None:
        """Log a line for each pack that uses ids of ours. Called after every pack is loaded."""
        taken = self.by_pack()
        for pack in dict.fromkeys(taken.values()):
            ids = [node_id for node_id in taken if taken[node_id] == pack]
            _log.warning(
                "%s of %s is no node of ComfyUI-WanTrainer. Workflows that are opened here use %s instead; in API "
                "graphs write that yourself.",
                ", ".join(ids),
                pack,
                ", ".join(PREFIX + node_id for node_id in ids),
            )


def second_of(node: Node) -> Node:
    """Returns a subclass of the node with its second id."""

    def define_schema(cls: Node) -> io.Schema:
        schema = node.define_schema()
        # Menus and the search omit deprecated nodes.
        schema.is_deprecated = _all_nodes().get(schema.node_id) is node
        schema.node_id = PREFIX + schema.node_id
        return schema

    more: dict[str, Any] = {"define_schema": classmethod(define_schema), "__module__": node.__module__}
    return type(PREFIX + node.__name__, (node,), more | {"__doc__": node.__doc__})


def loaded_before(nodes: list[Node]) -> bool:
    """Returns whether another copy of this pack is loaded; then logs the copy in use."""
    other = _all_nodes().get(PREFIX + _id_of(nodes[0]))
    if other is None:
        return False
    here = Path(__file__).resolve().parents[2].name
    used = str(getattr(other, "RELATIVE_PYTHON_MODULE", "") or other.__module__)
    _log.warning("ComfyUI-WanTrainer is installed twice: %s is used, %s is not. Remove one of them.", used, here)
    return True


def _id_of(node: Node) -> str:
    return node.define_schema().node_id


def _all_nodes() -> dict[str, Any]:
    """Returns ComfyUI's nodes by id; empty without a ComfyUI (tools that list the nodes of a pack)."""
    return getattr(sys.modules.get("nodes"), "NODE_CLASS_MAPPINGS", {})
