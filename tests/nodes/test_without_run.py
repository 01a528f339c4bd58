"""Validate Video on a model from Load Wan Model: LoRA files of anybody, through both experts, and no run at all."""

from __future__ import annotations

import json
import shutil

import pytest
from comfy_server import ComfyServer
from graphs import Graph, training_graph
from test_frozen_loras import write_lora
from world import MODEL

pytestmark = pytest.mark.comfy
VALIDATE = "8"
PAIR = {name: f"wan2.2_other_t2v_{name}_noise_14B.safetensors" for name in ("high", "low")}


def graph_without_run(comfy: ComfyServer) -> Graph:
    models = comfy.base / "models" / "diffusion_models"
    for name in PAIR.values():
        shutil.copyfile(models / MODEL, models / name)
    for seed, name in enumerate(("high_style.safetensors", "low_style.safetensors")):
        write_lora(comfy.base, name, seed)
    parts = training_graph("unused")
    graph = {name: parts[name] for name in ("model", "clip", "vae")}
    graph["model"]["inputs"] |= {"diffusion_model": PAIR["high"], "low_noise_model": PAIR["low"]}
    graph["file"] = {
        "class_type": "WanLoraFile",
        "inputs": {"lora": "high_style.safetensors", "low_noise_lora": "low_style.safetensors"},
    }
    sizes = {"width": 32, "height": 32, "num_frames": 5, "steps": 2}
    graph["preview"] = {
        "class_type": "WanPreviewSettings",
        "inputs": {"clip": ["clip", 0], "prompts": "a ball"} | sizes,
    }
    inputs = {"run": ["model", 0], "vae": ["vae", 0], "validation": ["preview", 0], "loras": ["file", 0]}
    graph[VALIDATE] = {"class_type": "ValidateVideo", "inputs": inputs | {"strengths": "0.5, 1.0", "seeds": "1, 2"}}
    return graph


@pytest.mark.soak
def test_lora_files_are_compared_without_any_run(comfy: ComfyServer) -> None:
    entry = comfy.run(graph_without_run(comfy))
    (facts,) = comfy.outputs(entry, VALIDATE)["wan_clips"]
    rows = [[(clip["lora"], clip["strength"]) for clip in row["clips"]] for row in facts["rows"]]
    assert rows == [[(None, None), ("high_style", 0.5), ("high_style", 1.0)]] * 2
    clips = json.loads(comfy.outputs(entry, VALIDATE)["text"][0])["clips"]
    assert all(clip["drift_mean_abs"] > 0 for clip in clips if not clip["clip"].startswith("baseline"))
    runs = comfy.output / "wan_trainer"
    (folder,) = (runs / "_grids").glob("*/samples/validate-*")
    assert len(list(folder.glob("*.mp4"))) == 6 + 1, "the clips, and all of them in one"
    assert folder.parents[1].name not in {run["id"] for run in comfy.get("/wan_trainer/runs")["runs"]}


def test_what_belongs_to_a_run_is_refused_without_one(comfy: ComfyServer) -> None:
    graph = graph_without_run(comfy)
    inputs = graph[VALIDATE]["inputs"]
    many = {**graph, VALIDATE: {**graph[VALIDATE], "inputs": inputs | {"seeds": ", ".join(map(str, range(40)))}}}
    assert "40 rows (prompts x seeds) of 3 clips" in comfy.error(comfy.run(many, check=False))
    inputs["saved_steps"] = "250"
    assert 'saved_steps is "250", but without a run there are no saved steps' in comfy.error(
        comfy.run(graph, check=False)
    )
    inputs |= {"saved_steps": "none", "partner": ["model", 0]}
    assert "partner belongs to a run" in comfy.error(comfy.run(graph, check=False))
    del inputs["partner"], inputs["loras"]
    assert "Without a run there is no LoRA to render" in comfy.error(comfy.run(graph, check=False))
