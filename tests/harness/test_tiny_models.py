"""The tiny models are real to ComfyUI: its own loaders take them, and they encode, sample and decode."""

from __future__ import annotations

import io
from typing import Any

import pytest
from comfy_server import ComfyServer, PromptRefused
from PIL import Image, ImageStat
from world import sampling_graph, tiny_graph

pytestmark = pytest.mark.comfy


def test_core_nodes_sample_and_decode_nine_frames(comfy: ComfyServer) -> None:
    entry = comfy.run(sampling_graph())
    images = comfy.outputs(entry, "11")["images"]
    assert len(images) == 9
    picture = Image.open(io.BytesIO(comfy.view(images[4])))
    assert picture.size == (64, 48)
    assert min(ImageStat.Stat(picture).stddev) > 5, "a flat picture means NaN or a dead decoder"


def test_texts_and_seeds_are_told_apart_and_repeat(comfy: ComfyServer) -> None:
    def first_frame(**options: Any) -> bytes:
        graph = sampling_graph(prefix="texts", **options)
        return comfy.view(comfy.outputs(comfy.run(graph), "11")["images"][0])

    ball = first_frame(text="a red ball")
    assert first_frame(text="a blue cube") != ball
    assert first_frame(text="a red ball", seed=7) != ball
    comfy.free()
    again = first_frame(text="a red ball")
    assert Image.open(io.BytesIO(again)).tobytes() == Image.open(io.BytesIO(ball)).tobytes()


def test_an_unknown_model_file_is_refused_with_its_node(comfy: ComfyServer) -> None:
    graph = sampling_graph()
    graph["1"]["inputs"]["unet_name"] = "absent.safetensors"
    with pytest.raises(PromptRefused, match=r"node 1 \(UNETLoader\)"):
        comfy.queue(graph)


def test_events_of_a_prompt_arrive(comfy: ComfyServer) -> None:
    with comfy.events() as seen:
        comfy.run(sampling_graph(seed=6))
        seen.wait_for("execution_success")
    assert max(event["value"] for event in seen.of("progress")) == 4


def test_clips_are_in_the_input_folder(comfy: ComfyServer) -> None:
    import av

    frames = {}
    for file in sorted((comfy.base / "input" / "clips").glob("*.mp4")):
        assert file.with_suffix(".txt").read_text(encoding="utf-8").strip()
        with av.open(str(file)) as video:
            assert video.streams.video[0].codec_context.name == "h264"
            frames[file.name] = sum(1 for _ in video.decode(video=0))
    assert frames == {"bikes.mp4": 250, "bigbuckbunny.mp4": 132, "carphone.mp4": 120}


def test_a_shipped_graph_is_made_to_run_here_without_being_changed() -> None:
    shipped = {
        "1": {
            "class_type": "CLIPLoader",
            "inputs": {"clip_name": "umt5.safetensors", "type": "wan"},
        },
        "2": {"class_type": "TrainLoRA", "inputs": {"steps": 1500, "run_name": "x"}},
        "3": {"class_type": "VAELoader", "inputs": {"vae_name": "wan_2.1_vae.safetensors"}},
    }
    here = tiny_graph(shipped, TrainLoRA={"steps": 4})
    assert here["1"] == {"class_type": "TinyWanCLIPLoader", "inputs": {}}
    assert here["2"]["inputs"] == {"steps": 4, "run_name": "x"}
    assert here["3"]["inputs"]["vae_name"] == "wan_tiny_vae.safetensors"
    assert shipped["2"]["inputs"]["steps"] == 1500
