"""LoRAs that other trainers merge into the model act beside it here, each by a node of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from wan_core.migrate import api_graph, canvas_graph, read_job

MUSUBI = """task = "t2v-1.3B"
dit = "x.safetensors"
base_weights = ["a/one.safetensors", "C:\\\\b\\\\two.safetensors"]
base_weights_multiplier = [0.5]
"""
PAIR = """task = "t2v-A14B"
dit = "low.safetensors"
dit_high_noise = "high.safetensors"
base_weights = "one.safetensors"
"""
FUSED = """[model]
type = "wan"
ckpt_path = "Wan2.1-T2V-1.3B"
[adapter]
type = "lora"
rank = 8
fuse_adapters = [{ path = "/data2/one.safetensors", weight = 0.5 }, { path = "two.safetensors" }]
"""
ASSISTED = {
    "model_family": "wan",
    "model_flavour": "t2v-480p-1.3b-2.1",
    "assistant_lora_path": "loras/one.safetensors",
    "assistant_lora_strength": 0.5,
}
TOOLKIT = {
    "config": {
        "process": [
            {"model": {"arch": "wan21:1b", "name_or_path": "Wan-AI/Wan2.1-T2V-1.3B", "lora_path": "x/one.safetensors"}}
        ]
    }
}


@pytest.mark.parametrize(
    ("name", "text", "wanted"),
    [
        ("a.toml", MUSUBI, [("one.safetensors", 0.5), ("two.safetensors", 1.0)]),
        ("a.toml", PAIR, [("one.safetensors", 1.0)]),
        ("a.toml", FUSED, [("one.safetensors", 0.5), ("two.safetensors", 1.0)]),
        ("a.json", json.dumps(ASSISTED), [("one.safetensors", 0.5)]),
        ("a.json", json.dumps(ASSISTED | {"disable_assistant_lora": True}), []),
        ("a.json", json.dumps(TOOLKIT), [("one.safetensors", 1.0)]),
    ],
    ids=["musubi-tuner", "of a pair", "diffusion-pipe", "SimpleTuner", "switched off", "ai-toolkit"],
)
def test_they_stand_one_behind_another_between_the_model_and_what_follows(
    tmp_path: Path, name: str, text: str, wanted: list[tuple[str, float]]
) -> None:
    (tmp_path / name).write_text(text)
    job = read_job(tmp_path / name)
    graph = api_graph(job)
    kinds = {number: node["class_type"] for number, node in graph.items()}
    (trainer,) = [node for node in graph.values() if node["class_type"] == "TrainLoRA"]
    found, at = [], trainer["inputs"]["model"][0]
    while kinds[at] == "AddFrozenLora":
        inputs = graph[at]["inputs"]
        found.append((inputs["lora"], inputs["strength"]))
        both = (inputs.get("low_noise_lora"), inputs.get("strength_low_noise"))
        assert both == (found[-1] if "dit_high_noise" in text else (None, None))
        at = inputs["model"][0]
    assert kinds[at] == "LoadWanModel"
    assert found[::-1] == wanted
    drawn = [node for node in canvas_graph(job)["nodes"] if node["type"] == "AddFrozenLora"]
    assert len(drawn) == len(wanted)
    assert len({tuple(node["pos"]) for node in drawn}) == len(wanted), "none lies on another"
    assert "unknown, so not used" not in job.account()


def test_one_that_names_a_repository_is_something_to_do(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(ASSISTED | {"assistant_lora_path": "someone/assistant"}))
    job = read_job(tmp_path / "a.json")
    assert job.frozen == []
    assert any("someone/assistant into models/loras, and add it with Add Frozen LoRA" in one for one in job.hints)
