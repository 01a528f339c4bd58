"""Validate Video through a pair of which a run trained one expert: the other one comes from Load Wan Model."""

from __future__ import annotations

import json
import shutil

import pytest
from comfy_server import ComfyServer
from graphs import TRAIN, Graph, folder_of, training_graph
from safetensors.torch import save_file
from test_frozen_loras import write_lora
from world import MODEL

from tests.support.tiny_run import random_weights

pytestmark = [pytest.mark.comfy, pytest.mark.soak]
VALIDATE = "8"
PAIR = {name: f"wan2.2_tiny_t2v_{name}_noise_14B.safetensors" for name in ("high", "low")}


def graph_of(comfy: ComfyServer, run_name: str, expert: str) -> tuple[Graph, dict[str, object]]:
    """Returns a graph that trains on a pair, and the inputs of its Validate Video."""
    models = comfy.base / "models" / "diffusion_models"
    for name in PAIR.values():
        shutil.copyfile(models / MODEL, models / name)
    graph = training_graph(run_name, steps=2, expert=expert)
    graph["model"]["inputs"] |= {"diffusion_model": PAIR["high"], "low_noise_model": PAIR["low"]}
    inputs: dict[str, object] = {"run": [TRAIN, 0], "vae": ["vae", 0], "saved_steps": "2"}
    graph[VALIDATE] = {"class_type": "ValidateVideo", "inputs": inputs}
    return graph, inputs


def test_a_run_of_both_renders_through_its_pair(comfy: ComfyServer) -> None:
    graph, _ = graph_of(comfy, "both_of_two", "both")
    (facts,) = comfy.outputs(comfy.run(graph), VALIDATE)["wan_clips"]
    assert [clip["step"] for clip in facts["rows"][0]["clips"]] == [None, 2]


def test_the_partner_renders_with_it_and_is_named(comfy: ComfyServer) -> None:
    graph, inputs = graph_of(comfy, "one_of_two", "high")
    graph["alone"] = {"class_type": "ValidateVideo", "inputs": dict(inputs)}
    inputs["partner"] = ["model", 0]
    with comfy.events() as seen:
        entry = comfy.run(graph)
    said = [status["text"] for status in seen.of("wan_trainer.status") if status["node"] == VALIDATE]
    assert [text for text in said if "Previews use both experts. The low noise expert" in text and PAIR["low"] in text]
    folders = list((folder_of(comfy, "one_of_two") / "samples").glob("validate-*"))
    assert len(folders) == 2, "clips of the expert alone are others"
    assert all(len(list(folder.glob("*.mp4"))) >= 2 for folder in folders)
    for node in (VALIDATE, "alone"):
        (facts,) = comfy.outputs(entry, node)["wan_clips"]
        assert [clip["step"] for clip in facts["rows"][0]["clips"]] == [None, 2]


def test_another_file_under_the_partners_name_makes_other_clips(comfy: ComfyServer) -> None:
    graph, inputs = graph_of(comfy, "exchanged_partner", "high")
    inputs["partner"] = ["model", 0]
    comfy.run(graph)
    samples = folder_of(comfy, "exchanged_partner") / "samples"
    (before,) = samples.glob("validate-*")
    save_file(random_weights(seed=9), comfy.base / "models" / "diffusion_models" / PAIR["low"])
    comfy.run(graph)
    (after,) = set(samples.glob("validate-*")) - {before}
    clips = [{file.stem: file.read_bytes() for file in folder.glob("*.latent")} for folder in (before, after)]
    assert clips[0].keys() == clips[1].keys() != set()
    assert not set(clips[0].values()) & set(clips[1].values())


def test_previews_of_one_expert_go_through_the_pair_that_is_loaded(comfy: ComfyServer) -> None:
    graph, _ = graph_of(comfy, "previewed_one_of_two", "high")
    del graph[VALIDATE]
    write_lora(comfy.base, "of_the_other_one.safetensors", 5)
    graph["frozen"] = {
        "class_type": "AddFrozenLora",
        "inputs": {"model": ["model", 0], "lora": "none", "low_noise_lora": "of_the_other_one.safetensors"},
    }
    graph["preview"] = {
        "class_type": "WanPreviewSettings",
        "inputs": {"clip": ["clip", 0], "prompts": "a ball", "sampling": "custom", "steps": 2, "cfg": 1.0},
    }
    previewed = {"vae": ["vae", 0], "validation": ["preview", 0], "preview_every_n_steps": 1}
    graph[TRAIN]["inputs"] |= {"model": ["frozen", 0], **previewed}

    def said(graph: Graph) -> list[str]:
        with comfy.events() as seen:
            comfy.run(graph)
        texts = [status["text"] for status in seen.of("wan_trainer.status") if status["node"] == TRAIN]
        return [text for text in texts if "use both experts" in text or "expert alone" in text]

    (text,) = set(said(graph))
    assert f"The low noise expert, which this run does not train, is {PAIR['low']}" in text
    assert "LoRAs on it: of_the_other_one.safetensors at 1." in text
    run = folder_of(comfy, "previewed_one_of_two")
    clips = {file.stem for file in (run / "samples").glob("*.mp4")}
    assert clips == {f"step-{step:06d}_p0" for step in range(3)}
    known = json.loads((run / "run.json").read_text(encoding="utf-8"))
    assert known["model"]["loras"] == [], "nothing acts under the one that is trained"
    assert known["partner"]["base_file"].endswith(PAIR["low"])
    assert known["partner_digest"]
    # With one file, which is a job of its own, that one is shown alone.
    graph["model"]["inputs"]["low_noise_model"] = "none"
    graph[TRAIN]["inputs"]["model"] = ["model", 0]
    (alone,) = set(said(graph))
    assert "The high-noise expert alone makes the previews of this run" in alone
    other = folder_of(comfy, "previewed_one_of_two_002")
    assert json.loads((other / "run.json").read_text(encoding="utf-8"))["partner"] is None
