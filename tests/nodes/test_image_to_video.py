"""Image-to-video through POST /prompt of a genuine ComfyUI: cached once, trained, previewed, used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from comfy_server import ComfyServer
from graphs import CACHE, TRAIN, Graph, folder_of, run_of, training_graph
from safetensors.torch import load_file
from world import CLIP, VAE, add_kinds

pytestmark = [pytest.mark.comfy, pytest.mark.slow, pytest.mark.lasts(6)]

QUICK = {"sampling": "custom", "steps": 2, "cfg": 1.0}


@pytest.fixture(scope="module")
def comfy(comfy: ComfyServer, comfyui_tree: Path) -> ComfyServer:
    """The shared server, with a tiny model of every kind."""
    add_kinds(comfy.base, comfyui_tree)
    return comfy


def graph_for(model: str, run_name: str, **train: Any) -> Graph:
    graph = training_graph(run_name, **{"steps": 2, **train})
    graph["model"]["inputs"]["diffusion_model"] = f"{model}.safetensors"
    return graph


def with_previews(graph: Graph, **preview: Any) -> Graph:
    """Previews from a picture of ComfyUI's own, before and after."""
    inputs = {"clip": ["clip", 0], "start_image": ["picture", 0], **QUICK, **preview}
    graph["picture"] = {
        "class_type": "EmptyImage",
        "inputs": {"width": 80, "height": 60, "batch_size": 1, "color": 0xCC3311},
    }
    graph["preview"] = {"class_type": "WanPreviewSettings", "inputs": inputs}
    graph[TRAIN]["inputs"] |= {"vae": ["vae", 0], "validation": ["preview", 0], "preview_every_n_steps": 2}
    return graph


def image_to_video(model: str, lora: str) -> Graph:
    """ComfyUI's own way from a picture and a LoRA to a clip."""
    return {
        "1": {"class_type": "UNETLoader", "inputs": {"unet_name": f"{model}.safetensors", "weight_dtype": "default"}},
        "2": {
            "class_type": "LoraLoaderModelOnly",
            "inputs": {"model": ["1", 0], "lora_name": lora, "strength_model": 1.0},
        },
        "3": {"class_type": CLIP, "inputs": {}},
        "4": {"class_type": "CLIPTextEncode", "inputs": {"clip": ["3", 0], "text": "a red ball"}},
        "5": {"class_type": "VAELoader", "inputs": {"vae_name": VAE}},
        "6": {"class_type": "EmptyImage", "inputs": {"width": 80, "height": 60, "batch_size": 1, "color": 0xCC3311}},
        "7": {
            "class_type": "WanImageToVideo",
            "inputs": {
                "positive": ["4", 0],
                "negative": ["4", 0],
                "vae": ["5", 0],
                "start_image": ["6", 0],
                "width": 48,
                "height": 48,
                "length": 5,
                "batch_size": 1,
            },
        },
        "8": {
            "class_type": "KSampler",
            "inputs": {
                "model": ["2", 0],
                "positive": ["7", 0],
                "negative": ["7", 1],
                "latent_image": ["7", 2],
                "seed": 1,
                "steps": 1,
                "cfg": 1.0,
                "sampler_name": "euler",
                "scheduler": "simple",
                "denoise": 1.0,
            },
        },
        "9": {"class_type": "SaveLatent", "inputs": {"samples": ["8", 0], "filename_prefix": "i2v/latent"}},
    }


def test_an_image_to_video_lora_is_trained_previewed_and_used(comfy: ComfyServer) -> None:
    graph = with_previews(graph_for("wan_tiny_i2v", "motion"))
    graph["validate"] = {"class_type": "ValidateVideo", "inputs": {"run": [TRAIN, 0], "vae": ["vae", 0]}}
    entry = comfy.run(graph)
    run = run_of(comfy, entry)
    assert (run["status"], run["step"]) == ("done", 2)
    assert len(comfy.outputs(entry, "validate")["images"]) == 2, "the base model and the saved step, from the picture"
    assert (run["cache"]["conditions_encoded"], run["cache"]["conditions_reused"]) == (3, 0)
    assert len(run["samples"]) == 2
    settings = json.loads((folder_of(comfy, "motion") / "run.json").read_text(encoding="utf-8"))
    assert settings["preview"]["condition_key"]

    comfy.free()
    with comfy.events() as seen:
        again = run_of(comfy, comfy.run(graph_for("wan_tiny_i2v", "motion", steps=3)))
    assert again["step"] == 3
    assert (again["cache"]["conditions_encoded"], again["cache"]["conditions_reused"]) == (0, 3)
    assert not any(data.get("node") == "vae" for data in seen.of("executing")), "a complete cache loads no encoder"
    assert_comfyui_uses_every_key(comfy, "wan_tiny_i2v", again["lora_name"])


@pytest.mark.soak
def test_models_with_image_tokens_are_trained_and_previewed(comfy: ComfyServer) -> None:
    graph = graph_for("wan_tiny_i2v_clip", "tokens")
    refused = comfy.run(graph, check=False)
    assert "Connect Load CLIP Vision with clip_vision_h to clip_vision of Cache Latents" in comfy.error(refused)

    graph = with_previews(graph)
    graph["vision"] = {"class_type": "TinyWanCLIPVisionLoader", "inputs": {}}
    graph[CACHE]["inputs"]["clip_vision"] = ["vision", 0]
    refused = comfy.run(graph, check=False)
    assert "to clip_vision of Wan Preview Settings" in comfy.error(refused)

    graph["preview"]["inputs"]["clip_vision"] = ["vision", 0]
    run = run_of(comfy, comfy.run(graph))
    assert (run["status"], len(run["samples"]), run["cache"]["conditions_reused"]) == ("done", 2, 3)
    assert_comfyui_uses_every_key(comfy, "wan_tiny_i2v_clip", run["lora_name"])

    both = graph_for("wan_tiny_flf2v", "first_last", steps=1)
    both |= {"vision": graph["vision"], CACHE: graph[CACHE]}
    run = run_of(comfy, comfy.run(both))
    assert (run["status"], run["cache"]["conditions_encoded"], run["cache"]["latents_reused"]) == ("done", 3, 3)


@pytest.mark.soak
def test_ti2v_is_trained_on_both_and_previewed_from_a_picture(comfy: ComfyServer) -> None:
    graph = with_previews(graph_for("wan_tiny_ti2v", "both_ways"))
    graph["vae"] = {"class_type": "TinyWan22VAELoader", "inputs": {}}
    graph["data"]["inputs"] |= {"width": 64, "height": 64}
    graph["settings"] = {"class_type": "WanTrainSettings", "inputs": {"first_frame_conditioning_p": 1.0}}
    graph[TRAIN]["inputs"]["settings"] = ["settings", 0]
    run = run_of(comfy, comfy.run(graph))
    assert (run["status"], len(run["samples"])) == ("done", 2)
    settings = json.loads((folder_of(comfy, "both_ways") / "run.json").read_text(encoding="utf-8"))
    assert settings["train"]["first_frame_conditioning_p"] == 1.0
    latent = load_file(folder_of(comfy, "both_ways") / "samples" / "step-000002_p0.latent")["latent"]
    key = settings["preview"]["first_frame_key"]
    kept = comfy.output / "wan_trainer" / "_cache" / "latents" / key[:2] / f"{key}.safetensors"
    assert torch.equal(latent[:, :1], load_file(kept)["latent"].float())


def assert_comfyui_uses_every_key(comfy: ComfyServer, model: str, lora: str) -> None:
    log_before = len(comfy.log_text())
    entry = comfy.run(image_to_video(model, lora))
    assert comfy.outputs(entry, "9")["latents"]
    assert "lora key not loaded" not in comfy.log_text()[log_before:]
