"""What nodes hand to the cards of the page: plain data in their ui output, and so in the history."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest
from comfy_server import ComfyServer
from graphs import Graph, training_graph
from world import MODEL

from tests.support.cards import gpu, put_in

pytestmark = pytest.mark.comfy


OWN_MODEL = "card_facts.safetensors"
"""a file no other test of the shared server loads: ComfyUI tells nothing of a node whose output it still has"""


def scan_and_split(**split: Any) -> Graph:
    """Load, split and scan; trains nothing."""
    graph = training_graph("")
    graph["model"]["inputs"]["diffusion_model"] = OWN_MODEL
    return {
        "model": graph["model"],
        "data": graph["data"],
        "split": {"class_type": "SplitAcrossGPUs", "inputs": {"model": ["model", 0], **split}},
    }


def test_a_queue_without_training_tells_split_model_and_dataset(comfy: ComfyServer) -> None:
    models = comfy.base / "models" / "diffusion_models"
    shutil.copyfile(models / MODEL, models / OWN_MODEL)
    entry = comfy.run(scan_and_split(mode="copy per GPU", devices="cpu,cpu"))
    split = comfy.outputs(entry, "split")["wan_split"][0]
    assert split["asked"] == {"mode": "copy per GPU", "devices": "cpu,cpu"}
    assert (split["mode"], split["devices"]) == ("copy per GPU", [{"name": "cpu", "title": ""}])
    assert split["copies"] == [[0, 0], [0, 0]]
    memory = split["memory"]["cpu"]
    assert {*memory} == {"weights", "total"}, "the page adds what its plan predicts"
    assert 0 < memory["weights"] < memory["total"]

    model = comfy.outputs(entry, "model")["wan_model"][0]
    assert model["asked"] == {"diffusion_model": OWN_MODEL}
    assert (model["boundary"], model["expert"], model["pair"]) == (None, None, False)

    shown = comfy.outputs(entry, "data")
    facts = shown["wan_dataset"][0]
    assert facts["asked"] == {"folder": "clips", "width": 48, "height": 48, "num_frames": 5}
    assert (facts["clips"], facts["stills"], facts["samples"]) == (3, 0, 3)
    assert len(facts["sheet"]["cells"]) == 3
    assert facts["image"]["type"] == "temp"
    assert "images" not in shown, "the page would draw the sheet twice"
    assert str(comfy.base) not in json.dumps([split, model, facts])

    again = comfy.run(scan_and_split(mode="copy per GPU", devices="cpu,cpu"))
    assert comfy.outputs(again, "split")["wan_split"] == [split], "a queue that ran nothing has no card"


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two cards as far as their names and sizes go."""
    put_in(monkeypatch, gpu("Card 0", (8, 6)), gpu("Card 1", (8, 6)))


@pytest.fixture
def tiny(pack_nodes: dict[str, Any], tiny_models: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The tiny model of two blocks, as LoadWanModel hands it on."""
    import folder_paths

    entry = ([str(tiny_models / "diffusion_models")], folder_paths.supported_pt_extensions)
    monkeypatch.setitem(folder_paths.folder_names_and_paths, "diffusion_models", entry)
    folder_paths.filename_list_cache.pop("diffusion_models", None)
    yield pack_nodes["LoadWanModel"].execute(diffusion_model=MODEL, device="cpu").result[0]
    folder_paths.filename_list_cache.pop("diffusion_models", None)


def test_a_split_over_two_cards_names_them_and_what_lies_where(
    pack_nodes: dict[str, Any], tiny: Any, two_gpus: None
) -> None:
    made = pack_nodes["SplitAcrossGPUs"].execute(tiny, devices="cuda:0,cuda:1")
    assert made.result[0].plan.placement.mode == "auto", "the mode is chosen once the clips are known"
    facts = made.ui["wan_split"][0]
    assert facts["devices"] == [{"name": "cuda:0", "title": "Card 0"}, {"name": "cuda:1", "title": "Card 1"}]
    assert facts["copies"] == [[0, 1]]
    assert [memory["total"] for memory in facts["memory"].values()] == [24 << 30] * 2
    assert facts["memory"]["cuda:0"]["weights"] > facts["memory"]["cuda:1"]["weights"] > 0
    copies = pack_nodes["SplitAcrossGPUs"].execute(tiny, mode="copy per GPU").ui["wan_split"][0]
    assert copies["copies"] == [[0, 0], [1, 1]]
