"""Another pack has one of our ids, before us or after us: theirs stays theirs, ours answers to its second id."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from comfy_server import ROOT, ComfyServer, link_folder
from graphs import Graph, training_graph
from route_server import our_module
from world import CLIP

pytestmark = pytest.mark.comfy

OTHER = """
class LoadsSomethingElse:
    RETURN_TYPES = ("FunModels",)
    FUNCTION = "load"
    CATEGORY = "other"

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"model": (["a"],)}}

    def load(self, model):
        return (model,)

NODE_CLASS_MAPPINGS = {"LoadWanModel": LoadsSomethingElse}
"""


def server(own_comfy: Callable[..., ComfyServer], elsewhere: Path, first: bool) -> ComfyServer:
    """A server with the packs of `elsewhere` loaded before ours, or after."""
    pack = elsewhere / "VideoX-Fun"
    pack.mkdir(parents=True)
    (pack / "__init__.py").write_text(OTHER, encoding="utf-8")
    paths = elsewhere.parent / "paths.yaml"
    default = "  is_default: true\n" if first else ""
    paths.write_text(f"more:\n{default}  custom_nodes: {elsewhere.as_posix()}\n", encoding="utf-8")
    return own_comfy(flags=["--extra-model-paths-config", str(paths)])


def prefixed(graph: Graph) -> Graph:
    """With second ids for every node of ours, as docs/headless.md has them."""
    others = {"VAELoader", CLIP}
    return {
        node: body if (kind := body["class_type"]) in others else {**body, "class_type": f"WanTrainer_{kind}"}
        for node, body in graph.items()
    }


def assert_both_work(comfy: ComfyServer) -> None:
    info = comfy.object_info()
    theirs, ours = info["LoadWanModel"], info["WanTrainer_LoadWanModel"]
    assert theirs["output"] == ["FunModels"]
    assert ours["output"] == ["WAN_TRAIN_MODEL", "STRING"]
    assert ours["display_name"] == "Load Wan Model (Training)"
    assert not ours["deprecated"], "the only one of ours: menus must show it"
    assert info["WanTrainer_TrainLoRA"]["deprecated"], "menus show TrainLoRA already"
    assert not info["TrainLoRA"]["deprecated"]
    assert comfy.get("/wan_trainer/ids") == {
        "version": 1,
        "prefix": "WanTrainer_",
        "taken": {"LoadWanModel": "custom_nodes.VideoX-Fun"},
    }
    said = [line for line in comfy.log_text().splitlines() if "is no node of ComfyUI-WanTrainer" in line]
    assert len(said) == 1
    assert said[0].endswith(  # newer ComfyUI puts the level before it
        "LoadWanModel of custom_nodes.VideoX-Fun is no node of ComfyUI-WanTrainer. Workflows that are opened here use "
        "WanTrainer_LoadWanModel instead; in API graphs write that yourself."
    )
    graph = prefixed(training_graph("second"))
    scanned = comfy.run({node: graph[node] for node in ("model", "data")}, timeout=120)
    assert "clips: 3 clips" in comfy.outputs(scanned, "data")["text"][0]


@pytest.mark.slow
def test_a_pack_that_loads_before_us_keeps_its_node(own_comfy: Callable[..., ComfyServer], tmp_path: Path) -> None:
    assert_both_work(server(own_comfy, tmp_path / "more", first=True))


@pytest.mark.slow
def test_a_pack_that_loads_after_us_and_a_second_copy_of_ours(
    own_comfy: Callable[..., ComfyServer], tmp_path: Path
) -> None:
    link_folder(ROOT, tmp_path / "more" / "ComfyUI-WanTrainer-main")
    comfy = server(own_comfy, tmp_path / "more", first=False)
    assert_both_work(comfy)
    said = [line for line in comfy.log_text().splitlines() if "installed twice" in line]
    assert len(said) == 1
    assert "ComfyUI-WanTrainer is installed twice: custom_nodes.ComfyUI-WanTrainer is used, " in said[0]
    assert said[0].endswith("Remove one of them.")


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
