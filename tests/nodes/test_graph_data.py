"""Data that comes from the graph, or from nowhere, through POST /prompt of a genuine ComfyUI."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from comfy_server import ComfyServer, PromptRefused
from graphs import CACHE, TRAIN, Graph, is_no_choice, run_of, training_graph
from safetensors import safe_open
from safetensors.torch import load_file

pytestmark = [pytest.mark.comfy, pytest.mark.slow, pytest.mark.lasts(0.7)]

SHOW, REPORT = "show", "report"
CLIPS = {
    "video": {"class_type": "LoadVideo", "inputs": {"file": "clips/bikes.mp4"}},
    "parts": {"class_type": "GetVideoComponents", "inputs": {"video": ["video", 0]}},
    "some": {"class_type": "ImageFromBatch", "inputs": {"image": ["parts", 0], "batch_index": 0, "length": 15}},
    "small": {
        "class_type": "ImageScale",
        "inputs": {"image": ["some", 0], "width": 48, "height": 48, "upscale_method": "area", "crop": "center"},
    },
    "list": {"class_type": "RebatchImages", "inputs": {"images": ["small", 0], "batch_size": 5}},
}
"""three clips of five frames, as a list"""


def shown(comfy: ComfyServer, entry: dict[str, Any]) -> str:
    return comfy.outputs(entry, SHOW)["text"][0]


def showing(graph: Graph, output: list[Any]) -> Graph:
    """Instead of training, so that a report is all the queue is for."""
    graph.pop(TRAIN, None)
    graph[SHOW] = {"class_type": "PreviewAny", "inputs": {"source": output}}
    return graph


def from_images(**inputs: Any) -> Graph:
    graph = training_graph("none") | CLIPS
    graph["data"] = {
        "class_type": "WanDatasetFromImages",
        "inputs": {
            "model": ["model", 0],
            "images": ["list", 0],
            "captions": "people ride bikes\na street\nparked cars",
            "width": 48,
            "height": 48,
            "num_frames": 5,
            **inputs,
        },
    }
    return showing(graph, [CACHE, 1])


def kept(comfy: ComfyServer) -> dict[Path, int]:
    folders = (comfy.output / "wan_trainer" / "_cache" / name for name in ("clips", "pictures", "latents"))
    return {file: file.stat().st_mtime_ns for folder in folders for file in folder.rglob("*") if file.is_file()}


def test_images_of_the_graph_are_kept_once_and_encoded_once(comfy: ComfyServer) -> None:
    first = shown(comfy, comfy.run(from_images()))
    assert "3 items, 15 frames" in first
    assert "latents: 3 encoded, 0 reused" in first
    before = kept(comfy)
    assert len([file for file in before if file.parent.parent.name == "clips"]) == 3

    comfy.free()
    with comfy.events() as seen:
        again = shown(comfy, comfy.run(from_images()))
    ran = {data.get("node") for data in seen.of("executing")}
    assert CACHE in ran, "the first report would be shown a second time"
    assert "latents: 0 encoded, 3 reused" in again
    assert "texts: 0 encoded" in again
    assert kept(comfy) == before
    assert "vae" not in ran

    films = from_images(images=["films", 0])
    films["films"] = {"class_type": "CreateVideo", "inputs": {"images": ["list", 0], "fps": 16.0}}
    assert "latents: 0 encoded, 3 reused" in shown(comfy, comfy.run(films)), "a VIDEO is its frames at its rate"
    assert kept(comfy) == before
    films["films"]["inputs"]["fps"] = 32.0
    assert "clip 1 has 3 frames at 16 fps (5 at 32 fps)" in comfy.error(comfy.run(films, check=False))

    stills = showing(from_images(batch_is="stills", captions="\n".join(f"picture {n}" for n in range(15))), ["data", 1])
    assert "0 clips, 15 stills" in shown(comfy, comfy.run(stills))


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({"captions": "one\ntwo"}, "fewer captions than clips: 2 for 3"),
        ({"num_frames": 9}, "clip 1 has 5 frames at 16 fps, fewer than num_frames 9"),
        ({"fps": 32.0}, "clip 1 has 3 frames at 16 fps (5 at 32 fps)"),
        ({"width": 50}, "width is 50; the model needs multiples of 16"),
    ],
)
def test_images_that_cannot_be_used_are_refused(comfy: ComfyServer, inputs: dict[str, Any], said: str) -> None:
    assert said in comfy.error(comfy.run(from_images(**inputs), check=False))


def test_a_kind_of_batch_that_does_not_exist_is_refused(comfy: ComfyServer) -> None:
    try:
        said = comfy.error(comfy.run(from_images(batch_is="films"), check=False))
    except PromptRefused as refused:
        said = str(refused)
    assert is_no_choice(said, "batch_is", "films")


def from_latents(run_name: str, **inputs: Any) -> Graph:
    graph = training_graph(run_name, steps=2) | CLIPS
    del graph["data"]
    graph["made"] = {
        "class_type": "MakeTrainingDataset",
        "inputs": {"images": ["list", 0], "vae": ["vae", 0], "clip": ["clip", 0], "texts": "people ride bikes"},
    }
    graph[CACHE] = {
        "class_type": "WanCacheFromLatents",
        "inputs": {"model": ["model", 0], "latents": ["made", 0], "conditioning": ["made", 1], **inputs},
    }
    return graph


def test_latents_and_conditioning_of_core_nodes_are_trained(comfy: ComfyServer) -> None:
    refused = comfy.run(from_latents("core_latents"), check=False)
    assert "Connect clip (Load CLIP, umt5_xxl, type wan), or both empty and negative" in comfy.error(refused)

    run = run_of(comfy, comfy.run(from_latents("core_latents", clip=["clip", 0])))
    assert (run["status"], run["step"]) == ("done", 2)
    assert (run["cache"]["latents_encoded"], run["cache"]["clips"]) == (3, 3)

    again = run_of(comfy, comfy.run(from_latents("core_latents", clip=["clip", 0])))
    assert (again["run"], again["cache"]["latents_encoded"]) == ("core_latents", 0), "the same job"

    prompts = from_latents("core_latents", empty=["no", 0], negative=["bad", 0])
    for name, text in (("no", ""), ("bad", "blurry")):
        prompts[name] = {"class_type": "CLIPTextEncode", "inputs": {"clip": ["clip", 0], "text": text}}
    report = shown(comfy, comfy.run(showing(prompts, [CACHE, 1])))
    assert "latents: 0 normalised and stored, 3 there already" in report


def test_latents_from_the_graph_are_those_cache_latents_makes_of_the_same_pixels(comfy: ComfyServer) -> None:
    """Normalised exactly once: both roads from the same frames end in the same bytes."""
    latents = comfy.output / "wan_trainer" / "_cache" / "latents"
    before = set(latents.rglob("*.safetensors"))
    one_frame_changed = {"color": 0x123456, "width": 48, "height": 48, "batch_size": 15}
    both = []
    for graph in (from_images(), from_latents("none", clip=["clip", 0])):
        graph["small"] = {"class_type": "EmptyImage", "inputs": one_frame_changed}
        comfy.run(showing(graph, [CACHE, 1]))
        both.append(set(latents.rglob("*.safetensors")) - before)
        before |= both[-1]
    (ours,), (given,) = both
    assert load_file(ours)["latent"].equal(load_file(given)["latent"])


def test_a_synthetic_set_trains_without_encoders_and_the_lora_says_so(comfy: ComfyServer) -> None:
    graph = training_graph("random", steps=2)
    for name in ("data", "vae", "clip"):
        del graph[name]
    graph[CACHE] = {
        "class_type": "WanSyntheticDataset",
        "inputs": {"model": ["model", 0], "count": 0, "width": 48, "height": 48, "num_frames": 5},
    }
    graph[SHOW] = {"class_type": "PreviewAny", "inputs": {"source": [CACHE, 1]}}
    with comfy.events() as seen:
        entry = comfy.run(graph)
    run = run_of(comfy, entry)
    assert (run["status"], run["step"], run["cache"]["clips"]) == ("done", 2, 64)
    assert "endless random clips, none twice: 48x48, 5 frames, 64 tokens" in shown(comfy, entry)
    assert "random tensors, not data" in shown(comfy, entry)
    assert any("random tensors, not data" in str(status) for status in seen.of("wan_trainer.status"))
    with safe_open(comfy.base / "models" / "loras" / run["lora_name"], "pt") as file:
        assert file.metadata()["wan_trainer.data"] == "synthetic"


def test_a_slider_is_trained_from_prompts_alone(comfy: ComfyServer) -> None:
    graph = training_graph("slider", steps=1)
    for name in ("data", "vae"):
        del graph[name]
    pairs = {"prompts": "a dog", "positive": "a big dog", "negative": "a small dog"}
    sizes = {"width": 48, "height": 48, "num_frames": 1}
    inputs = {"model": ["model", 0], "clip": ["clip", 0], **pairs, **sizes}
    graph[CACHE] = {"class_type": "WanSliderPrompts", "inputs": inputs}
    graph[SHOW] = {"class_type": "PreviewAny", "inputs": {"source": [CACHE, 1]}}
    entry = comfy.run(graph)
    run = run_of(comfy, entry)
    assert (run["status"], run["step"], run["cache"]["clips"]) == ("done", 1, 1)
    assert '"a dog": "a big dog | a small dog"' in shown(comfy, entry)
