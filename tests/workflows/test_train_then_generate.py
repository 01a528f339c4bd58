"""The graph that trains both experts and then makes a video, run to its end on tiny models of the same names."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from comfy_server import ComfyServer
from safetensors import safe_open
from world import DATASET, VAE, ensure_models, tiny_graph

pytestmark = [pytest.mark.comfy, pytest.mark.slow, pytest.mark.lasts(6)]

ROOT = Path(__file__).resolve().parents[2]
GRAPH = ROOT / "workflows" / "api" / "07_wan22_t2v_A14B_train_then_generate.json"
EXPERTS = ("wan2.2_t2v_high_noise_14B_fp8_scaled", "wan2.2_t2v_low_noise_14B_fp8_scaled")
SMALL: dict[str, dict[str, Any]] = {
    "WanVideoDataset": {"folder": DATASET, "width": 64, "height": 64, "num_frames": 5},
    "TrainLoRA": {"steps": 2, "learning_rate": 0.01, "rank": 4, "save_every_n_steps": 2, "preview_every_n_steps": 0},
    "VAELoader": {"vae_name": VAE},
    "EmptyHunyuanLatentVideo": {"width": 64, "height": 64, "length": 5},
}


@pytest.fixture
def experts(comfy: ComfyServer, comfyui_tree: Path) -> Iterator[None]:
    """Two tiny experts of different weights, called as the graph calls them."""
    folder = comfy.base / "models" / "diffusion_models"
    files = [folder / f"{name}.safetensors" for name in EXPERTS]
    for seed, file in enumerate(files, 20):
        made = ensure_models(comfyui_tree, seed=seed) if seed != 20 else ensure_models(comfyui_tree)
        file.write_bytes((made / "diffusion_models" / "wan_tiny_t2v.safetensors").read_bytes())
    yield
    for file in files:
        file.unlink()


def small(graph: dict[str, Any]) -> dict[str, Any]:
    """The graph with its own model files, fewer and smaller frames, and the tiny text encoder."""
    own = {"LoadWanModel": ("diffusion_model", "low_noise_model"), "UNETLoader": ("unet_name",)}
    out = tiny_graph(graph, **SMALL)
    for node, body in out.items():
        names = own.get(body["class_type"], ())
        body["inputs"] |= {name: graph[node]["inputs"][name] for name in names}
    return out


def nodes_of(graph: dict[str, Any], kind: str) -> list[str]:
    return [node for node, body in graph.items() if body["class_type"] == kind]


def test_both_experts_are_trained_and_only_then_loaded_and_a_video_is_saved(comfy: ComfyServer, experts: None) -> None:
    import av

    graph = small(json.loads(GRAPH.read_text(encoding="utf-8")))
    with comfy.events() as events:
        entry = comfy.run(graph)
    (trainer,) = nodes_of(graph, "TrainLoRA")
    run = comfy.outputs(entry, trainer)["wan_run"][0]
    assert (run["run"], run["status"], run["step"]) == ("my_character", "done", 2)
    assert [Path(name).name for name in run["lora_names"][:2]] == [
        "my_character_high_noise.safetensors",
        "my_character_low_noise.safetensors",
    ]
    assert run["use"] == [
        {"lora": name, "model": f"{file}.safetensors"} for name, file in zip(run["lora_names"], EXPERTS, strict=False)
    ]
    assert run["template"] == "video_wan2_2_14B_t2v"
    for name, expert in zip(run["lora_names"], ("high", "low"), strict=False):
        with safe_open(comfy.base / "models" / "loras" / name, "pt") as lora:
            said = lora.metadata()
        assert said["wan_trainer.variant"].endswith(f"{expert} noise")
        assert said["ss_steps"] == "1"

    began = [message["node"] for message in events.of("executing") if message["node"]]
    trained = began.index(trainer)
    loaded = [began.index(node) for node in nodes_of(graph, "UNETLoader")]
    assert trained < min(loaded), f"a base model was loaded before training was over: {began}"

    (saved,) = nodes_of(graph, "SaveVideo")
    (file,) = comfy.outputs(entry, saved)["images"]
    with av.open(io.BytesIO(comfy.view(file))) as video:
        stream = video.streams.video[0]
        frames = sum(1 for _ in video.decode(stream))
        assert (stream.width, stream.height, frames, stream.average_rate) == (64, 64, 5, 16)

    made = comfy.get("/wan_trainer/runs/my_character/generate?api")
    again = small(made["graph"])
    samplers = [again[node]["inputs"] for node in nodes_of(again, "KSamplerAdvanced")]
    # Of 20 steps of "simple" with shift 5, 9 begin at a sigma of 0.875 or above (t of 0.583).
    assert [(one["start_at_step"], one["end_at_step"]) for one in samplers] == [(0, 9), (9, 10000)]
    for one in samplers:
        one |= {"steps": 2, "start_at_step": 0 if one is samplers[0] else 1, "end_at_step": 1 + samplers.index(one)}
    assert [again[node]["inputs"]["lora_name"] for node in nodes_of(again, "LoraLoaderModelOnly")] == run["lora_names"][
        :2
    ]
    entry = comfy.run(again)
    (saved,) = nodes_of(again, "SaveVideo")
    (file,) = comfy.outputs(entry, saved)["images"]
    with av.open(io.BytesIO(comfy.view(file))) as video:
        assert sum(1 for _ in video.decode(video.streams.video[0])) == 5
