"""A second id for every node that no other pack has, for the day when another pack has the first.

`LoadWanModel` is also a node of VideoX-Fun, and ids are one list in ComfyUI: whoever comes last has it, and nobody is
told. So a taken id is left to whoever has it, every node also answers to `WanTrainer_<id>`, and a line in the log and
the route /wan_trainer/ids say which ids are somebody else's. While the short id is ours, menus do not show the second.
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
    """Our short ids that other packs have. Asks ComfyUI's list each time: packs load before and after ours."""

    def __init__(self, nodes: list[Node]) -> None:
        self._nodes = {_id_of(node): node for node in nodes}

    def free(self) -> list[Node]:
        """The nodes whose id nobody has yet: taking one would break the graphs of the pack that has it."""
        taken = self.by_pack()
        return [node for node_id, node in self._nodes.items() if node_id not in taken]

    def by_pack(self) -> dict[str, str]:
        """short id -> the pack that has it, as ComfyUI names packs ("custom_nodes.VideoX-Fun"). Empty: all is well."""
        return {
            node_id: str(getattr(holder, "RELATIVE_PYTHON_MODULE", "") or holder.__module__)
            for node_id, node in self._nodes.items()
            if (holder := _all_nodes().get(node_id)) is not None and holder is not node
        }

    async def tell(self, _app: Any = None) -> None:
        """One line in the log, once every pack is loaded."""
        packs: dict[str, list[str]] = {}
        for node_id, pack in self.by_pack().items():
            packs.setdefault(pack, []).append(node_id)
        for pack, ids in packs.items():
            _log.warning(
                "%s of %s is no node of ComfyUI-WanTrainer. Workflows that are opened here use %s instead; in API "
                "graphs write that yourself.",
                ", ".join(ids),
                pack,
                ", ".join(PREFIX + node_id for node_id in ids),
            )


def second_of(node: Node) -> Node:
    """The node under its second id: the same inputs, outputs and doings."""

    def define_schema(cls: Node) -> io.Schema:
        schema = node.define_schema()
        schema.is_deprecated = _all_nodes().get(schema.node_id) is node  # what menus and the search leave out
        schema.node_id = PREFIX + schema.node_id
        return schema

    more: dict[str, Any] = {"define_schema": classmethod(define_schema), "__module__": node.__module__}
    return type(PREFIX + node.__name__, (node,), more | {"__doc__": node.__doc__})


def loaded_before(nodes: list[Node]) -> bool:
    """Returns whether another copy of this pack is loaded; if so, a line in the log says which one is used."""
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
    """ComfyUI's list of nodes; empty where there is no ComfyUI (tools that list the nodes of a pack)."""
    return getattr(sys.modules.get("nodes"), "NODE_CLASS_MAPPINGS", {})
