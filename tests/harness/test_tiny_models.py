"""The tiny models are real to ComfyUI: its own loaders take them, and they encode, sample and decode."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from comfy_server import ComfyServer, PromptRefused
from world import CLIP, MODEL, VAE

pytestmark = pytest.mark.comfy


def sampling_graph(lora: str = "", seed: int = 5, prefix: str = "tiny") -> dict:
    graph = {
        "1": {
            "class_type": "UNETLoader",
            "inputs": {"unet_name": MODEL, "weight_dtype": "default"},
        },
        "2": {"class_type": "ModelSamplingSD3", "inputs": {"model": ["1", 0], "shift": 8.0}},
        "3": {"class_type": CLIP, "inputs": {}},
        "4": {"class_type": "CLIPTextEncode", "inputs": {"clip": ["3", 0], "text": "a red ball"}},
        "5": {"class_type": "CLIPTextEncode", "inputs": {"clip": ["3", 0], "text": ""}},
        "6": {
            "class_type": "EmptyHunyuanLatentVideo",
            "inputs": {"width": 64, "height": 48, "length": 9, "batch_size": 1},
        },
        "7": {
            "class_type": "KSampler",
            "inputs": {
                "model": ["2", 0],
                "positive": ["4", 0],
                "negative": ["5", 0],
                "latent_image": ["6", 0],
                "seed": seed,
                "steps": 4,
                "cfg": 5.0,
                "sampler_name": "euler",
                "scheduler": "simple",
                "denoise": 1.0,
            },
        },
        "8": {"class_type": "VAELoader", "inputs": {"vae_name": VAE}},
        "9": {"class_type": "VAEDecode", "inputs": {"samples": ["7", 0], "vae": ["8", 0]}},
        "10": {
            "class_type": "SaveImage",
            "inputs": {"images": ["9", 0], "filename_prefix": prefix},
        },
    }
    return graph


def test_core_nodes_sample_and_decode_nine_frames(comfy: ComfyServer) -> None:
    from PIL import Image, ImageStat

    entry = comfy.run(sampling_graph())
    images = comfy.outputs(entry, "10")["images"]
    assert len(images) == 9
    picture = Image.open(io.BytesIO(comfy.view(images[4])))
    assert picture.size == (64, 48)
    assert min(ImageStat.Stat(picture).stddev) > 5, "a flat picture means NaN or a dead decoder"


def test_text_encoder_gives_512_by_4096_and_tells_texts_apart(
    comfy: ComfyServer, comfyui_tree: Path
) -> None:
    first = comfy.run(sampling_graph(prefix="texts"))
    graph = sampling_graph(prefix="texts")
    graph["4"]["inputs"]["text"] = "a blue cube"
    second = comfy.run(graph)
    frames = [comfy.view(comfy.outputs(e, "10")["images"][0]) for e in (first, second)]
    assert frames[0] != frames[1]


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
