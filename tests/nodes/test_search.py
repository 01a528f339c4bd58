"""Nodes are found by the words people type, where the page can look for them."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

import pytest

pytestmark = pytest.mark.comfy


@pytest.fixture
def io(pack_nodes: dict[str, Any]) -> Any:
    """comfy_api.latest.io as the nodes have it."""
    return sys.modules[pack_nodes["TrainLoRA"].__module__].io


def with_aliases(schema: type) -> type:
    """A schema as ComfyUI has it from 0.10 on."""

    @dataclass
    class Schema(schema):
        search_aliases: list[str] = field(default_factory=list)

    return Schema


def test_every_node_has_other_names_where_comfyui_knows_them(
    pack_nodes: dict[str, Any], io: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(io, "Schema", with_aliases(io.Schema))
    for node_id, node in pack_nodes.items():
        schema = node.define_schema()
        words = schema.search_aliases
        assert len(words) >= 2, node_id
        assert len(set(words)) == len(words), node_id
        for word in words:
            assert word == word.strip().lower(), f"{node_id}: {word}"
            assert word not in schema.display_name.lower(), f"{node_id} is found by its name: {word}"


def test_a_schema_that_knows_none_is_given_none(
    pack_nodes: dict[str, Any], io: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    @dataclass
    class Older:
        node_id: str = ""

    search = sys.modules[pack_nodes["TrainLoRA"].__module__.rpartition(".")[0] + ".bridge.widgets"]
    monkeypatch.setattr(io, "Schema", Older)
    assert search.in_menu("finetune") == {"category": "Wan Trainer"}
    monkeypatch.setattr(io, "Schema", with_aliases(Older))
    assert search.in_menu("finetune, musubi")["search_aliases"] == ["finetune", "musubi"]
