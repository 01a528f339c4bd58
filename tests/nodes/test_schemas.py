"""What users' saved graphs depend on does not change by accident."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from schemas import SNAPSHOT, shape_of

pytestmark = pytest.mark.comfy


def shapes(pack_nodes: dict[str, Any]) -> dict[str, Any]:
    return {node_id: json.loads(json.dumps(shape_of(node.GET_NODE_INFO_V1()))) for node_id, node in pack_nodes.items()}


def test_ids_inputs_and_outputs_are_the_pinned_ones(pack_nodes: dict[str, Any]) -> None:
    found = shapes(pack_nodes)
    if os.environ.get("WAN_TRAINER_UPDATE"):
        SNAPSHOT.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    assert found == json.loads(SNAPSHOT.read_text(encoding="utf-8"))


def test_every_widget_has_a_default_and_a_tooltip_and_may_be_left_out(pack_nodes: dict[str, Any]) -> None:
    widgets = {"INT", "FLOAT", "STRING", "BOOLEAN", "COMBO"}
    for node_id, node in pack_nodes.items():
        for kind, inputs in node.GET_NODE_INFO_V1()["input"].items():
            if kind == "hidden":
                continue
            for name, (type_name, options) in inputs.items():
                assert options.get("tooltip"), f"{node_id}.{name} has no tooltip"
                if type_name in widgets:
                    assert kind == "optional", f"{node_id}.{name}"
                    assert "default" in options, f"{node_id}.{name}"
                if type_name == "COMBO":  # else the page shows "undefined", as of a folder without any list here
                    assert options["default"] in options["options"], f"{node_id}.{name}"


def test_no_socket_takes_everything(pack_nodes: dict[str, Any]) -> None:
    for node in pack_nodes.values():
        info = node.GET_NODE_INFO_V1()
        types = [spec[0] for kind in ("required", "optional") for spec in info["input"].get(kind, {}).values()]
        assert "*" not in [*types, *info["output"]]


def test_seeds_never_change_by_themselves(pack_nodes: dict[str, Any]) -> None:
    for node_id in ("TrainLoRA", "WanPreviewSettings", "WanSyntheticDataset"):
        seed = pack_nodes[node_id].GET_NODE_INFO_V1()["input"]["optional"]["seed"][1]
        assert seed["control_after_generate"] is False
