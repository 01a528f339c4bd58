"""LoRA files on wires: under the trained one, in previews alone, and beside it in a grid."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from comfy_server import ComfyServer
from graphs import TRAIN, Graph, folder_of, run_of, training_graph
from safetensors import safe_open
from safetensors.torch import save_file
from world import MODEL

pytestmark = pytest.mark.comfy

VALIDATE = "8"


def write_lora(base: Path, name: str, seed: int) -> None:
    """A LoRA in musubi's names on every query of the tiny model."""
    generator, tensors = torch.Generator().manual_seed(seed), {}
    with safe_open(base / "models" / "diffusion_models" / MODEL, "pt") as model:
        for key in model.keys():  # noqa: SIM118
            if key.endswith("self_attn.q.weight"):
                tall, wide = model.get_slice(key).get_shape()
                module = f"lora_unet_{key.removesuffix('.weight').rpartition('diffusion_model.')[2].replace('.', '_')}"
                tensors[f"{module}.lora_down.weight"] = torch.randn(2, wide, generator=generator)
                tensors[f"{module}.lora_up.weight"] = torch.randn(tall, 2, generator=generator)
    path = base / "models" / "loras" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path)


def graph_over(comfy: ComfyServer) -> Graph:
    for seed, name in enumerate(("style.safetensors", "few.safetensors")):
        write_lora(comfy.base, name, seed)
    graph = training_graph("over", vae=["vae", 0], validation=["preview", 0], steps=2, preview_every_n_steps=2)
    graph[TRAIN]["inputs"]["model"] = ["under", 0]
    graph["under"] = {
        "class_type": "AddFrozenLora",
        "inputs": {"model": ["model", 0], "lora": "style.safetensors", "strength": 0.5},
    }
    graph["few"] = {"class_type": "WanLoraFile", "inputs": {"lora": "few.safetensors", "strength": 0.25}}
    graph["preview"] = {
        "class_type": "WanPreviewSettings",
        "inputs": {"clip": ["clip", 0], "prompts": "a ball", "sampling": "4-step LoRA", "loras": ["few", 0]},
    }
    graph[VALIDATE] = {
        "class_type": "ValidateVideo",
        "inputs": {"run": [TRAIN, 0], "vae": ["vae", 0], "loras": ["few", 0], "saved_steps": "2", "strengths": "2.0"},
    }
    return graph


@pytest.mark.soak  # runs over a LoRA: tests/wan_core/session/test_frozen_loras.py
def test_loras_act_under_the_trained_one_in_previews_and_in_columns(comfy: ComfyServer) -> None:
    graph = graph_over(comfy)
    with comfy.events() as seen:
        entry = comfy.run(graph)
    said = {status["text"] for status in seen.of("wan_trainer.status")}
    assert "Previews are sampled in 4 steps: euler, simple, cfg 1, shift 5." in said
    run = run_of(comfy, entry)
    assert run["use"] == [
        {"lora": "style.safetensors", "model": MODEL, "strength": 0.5},
        {"lora": run["lora_name"], "model": MODEL},
    ]
    config = json.loads((folder_of(comfy, "over") / "run.json").read_text())
    assert [(one["file"], one["strength"]) for one in config["model"]["loras"]] == [("loras:style.safetensors", 0.5)]
    assert [(one["file"], one["strength"]) for one in config["preview"]["loras"]] == [("loras:few.safetensors", 0.25)]
    assert all(one["digest"] for part in ("model", "preview") for one in config[part]["loras"])
    with safe_open(comfy.base / "models" / "loras" / run["lora_name"], "pt") as lora:
        assert json.loads(lora.metadata()["wan_trainer.trained_over"]) == [["style", 0.5]]
    (facts,) = comfy.outputs(entry, VALIDATE)["wan_clips"]
    (row,) = facts["rows"]
    assert [(clip["step"], clip["lora"], clip["strength"]) for clip in row["clips"]] == [
        (None, None, None),
        (2, None, 2.0),
        (None, "few", 0.5),
    ]
    metrics = json.loads(comfy.outputs(entry, VALIDATE)["text"][0])["clips"]
    assert all(clip["drift_mean_abs"] > 0 for clip in metrics[1:])


def test_what_cannot_be_is_refused_before_anything_is_encoded(comfy: ComfyServer) -> None:
    graph = graph_over(comfy)
    del graph["preview"]["inputs"]["loras"]
    entry = comfy.run(graph, check=False)
    assert 'sampling "4-step LoRA" is for a LoRA that was made for 4 steps' in comfy.error(entry)
    graph = graph_over(comfy)
    graph["under"]["inputs"]["low_noise_lora"] = "few.safetensors"
    entry = comfy.run(graph, check=False)
    assert "There is one model, and the LoRA few.safetensors is for the low noise expert" in comfy.error(entry)
    save_file(
        {"diffusion_model.blocks.0.ffn.0.diff": torch.zeros(3, 3)}, comfy.base / "models" / "loras" / "odd.safetensors"
    )
    graph["under"]["inputs"] |= {"lora": "odd.safetensors", "low_noise_lora": "none"}
    entry = comfy.run(graph, check=False)
    assert "odd.safetensors was trained for a model of another size" in comfy.error(entry)
