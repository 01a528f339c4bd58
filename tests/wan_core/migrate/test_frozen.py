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


def process(**sections: object) -> str:
    model = {"arch": "wan21:1b", "name_or_path": "Wan-AI/Wan2.1-T2V-1.3B"}
    given = sections.pop("model", {})
    return json.dumps({"config": {"process": [{"model": {**model, **given}, **sections}]}})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("text", "share"),
    [
        (process(model={"assistant_lora_path": "x/adapter.safetensors"}), 0.0),
        (json.dumps(ASSISTED | {"assistant_lora_path": "x/adapter.safetensors"}), 0.0),
        (
            json.dumps(
                ASSISTED | {"assistant_lora_path": "x/adapter.safetensors", "assistant_lora_inference_strength": 0.25}
            ),
            0.5,
        ),
    ],
    ids=["ai-toolkit", "SimpleTuner", "SimpleTuner, weaker in previews"],
)
def test_a_training_adapter_acts_in_previews_as_there(tmp_path: Path, text: str, share: float) -> None:
    (tmp_path / "a.json").write_text(text)
    job = read_job(tmp_path / "a.json")
    (added,) = [node for node in api_graph(job).values() if node["class_type"] == "AddFrozenLora"]
    assert added["inputs"]["lora"] == "adapter.safetensors"
    assert added["inputs"]["preview_strength"] == share


def test_contrastive_guidance_is_the_guidance_target(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    for train, wanted in (
        ({"do_guidance_loss": True, "guidance_loss_target": 3.5}, 3.5),
        ({"do_guidance_loss": True}, 3.0),
        ({"do_guidance_loss": False, "guidance_loss_target": 3.5}, 1.0),
    ):
        file.write_text(process(train=train))
        assert read_job(file).train().guidance_target == wanted


def test_a_slider_of_ai_toolkit_becomes_prompts_in_place_of_clips(tmp_path: Path) -> None:
    targets = [
        {"target_class": "person", "positive": "old person", "negative": "young person"},
        {"target_class": "cat", "positive": "old cat", "negative": "kitten"},
    ]
    (tmp_path / "a.json").write_text(process(slider={"targets": targets, "resolutions": [[512, 512]]}))
    job = read_job(tmp_path / "a.json")
    graph = api_graph(job)
    kinds = {node["class_type"]: (number, node["inputs"]) for number, node in graph.items()}
    number, slider = kinds["WanSliderPrompts"]
    assert (slider["prompts"], slider["positive"]) == ("person\ncat", "old person\nold cat")
    assert slider["negative"] == "young person\nkitten"
    assert kinds["TrainLoRA"][1]["cache"] == [number, 0]
    assert not kinds.keys() & {"CacheLatents", "WanDatasetFromFile"}
    assert canvas_graph(job)["nodes"]
