"""Every node answers to a second id too. test_crowded_server.py has a server where other packs have the first ones."""

from __future__ import annotations

from typing import Any

import pytest
from route_server import our_module

pytestmark = pytest.mark.comfy


@pytest.fixture
def ids(pack_nodes: dict[str, Any]) -> Any:
    return our_module(pack_nodes, "bridge.second_ids")


def test_every_node_has_a_second_id_with_the_same_inputs(pack_nodes: dict[str, Any], ids: Any) -> None:
    for node_id, node in pack_nodes.items():
        second = ids.second_of(node).GET_NODE_INFO_V1()
        assert second.pop("name") == f"WanTrainer_{node_id}"
        first = node.GET_NODE_INFO_V1()
        assert {**first, "name": "", "deprecated": None} == {**second, "name": "", "deprecated": None}


def test_all_is_well_while_every_short_id_is_ours(
    pack_nodes: dict[str, Any], ids: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import nodes

    for node_id, node in pack_nodes.items():
        monkeypatch.setitem(nodes.NODE_CLASS_MAPPINGS, node_id, node)
    assert ids.TakenIds(list(pack_nodes.values())).by_pack() == {}
    assert ids.second_of(pack_nodes["TrainLoRA"]).GET_NODE_INFO_V1()["deprecated"] is True
