"""A ComfyUI base directory with tiny models, real clips and the test-only pack: what the demo and the tests run in."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from clips import place_clips

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TINY_PACK = HERE / "comfy_pack"

MODEL = "wan_tiny_t2v.safetensors"
VAE = "wan_tiny_vae.safetensors"
CLIP = "TinyWanCLIPLoader"
DATASET = "clips"

Graph = dict[str, dict[str, Any]]


def ensure_models(comfyui: Path, **size: int) -> Path:
    """A `models` folder with the tiny files, made once per recipe. `size`: options of make_models.py."""
    maker = HERE / "make_models.py"
    key = hashlib.sha256(maker.read_bytes() + repr(sorted(size.items())).encode()).hexdigest()[:12]
    folder = ROOT / ".cache" / f"tiny-{key}"
    if (folder / "vae" / VAE).is_file():
        return folder
    staging = folder.with_name(f"{folder.name}.{os.getpid()}")
    flags = [part for name, value in size.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    made = subprocess.run(
        [sys.executable, str(maker), "--comfyui", str(comfyui), "--out", str(staging), *flags],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        raise RuntimeError(f"The tiny models could not be made:\n{made.stderr[-2000:]}")
    try:
        staging.rename(folder)
    except OSError:  # another process was first
        shutil.rmtree(staging)
    return folder


def fill_base(base: Path, comfyui: Path, dataset: str = DATASET, **size: int) -> Path:
    """Put tiny models and a dataset of three real clips (`input/<dataset>`) into a base directory."""
    models = ensure_models(comfyui, **size)
    for file in (f"diffusion_models/{MODEL}", f"vae/{VAE}"):
        target = base / "models" / file
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(models / file, target)
    place_clips(base / "input" / dataset)
    return base


def add_kinds(base: Path, comfyui: Path) -> None:
    """Put one tiny model of every image-to-video kind into a base directory."""
    models = ensure_models(comfyui, kinds=1) / "diffusion_models"
    for file in models.glob("*.safetensors"):
        if file.name != MODEL:
            shutil.copyfile(file, base / "models" / "diffusion_models" / file.name)


def tiny_graph(graph: Graph, **overrides: dict[str, Any]) -> Graph:
    """A shipped API graph made to run here: tiny files by name, and the tiny text encoder instead of CLIPLoader.

    `overrides` change inputs by node class: `tiny_graph(graph, TrainLoRA={"steps": 4})`. `graph` itself stays as it is.
    """
    files: dict[str, dict[str, Any]] = {
        "LoadWanModel": {"diffusion_model": MODEL},
        "UNETLoader": {"unet_name": MODEL},
        "VAELoader": {"vae_name": VAE},
        "WanVideoDataset": {"folder": DATASET},
    }
    out: Graph = {}
    for node, body in graph.items():
        kind = body["class_type"]
        if kind == "CLIPLoader":
            out[node] = {**body, "class_type": CLIP, "inputs": {}}
            continue
        inputs = {**body["inputs"], **files.get(kind, {}), **overrides.get(kind, {})}
        out[node] = {**body, "inputs": inputs}
    return out


def sampling_graph(lora: str = "", seed: int = 5, text: str = "a red ball", prefix: str = "tiny") -> Graph:
    """Core nodes only: nine 64x48 frames from the tiny model, with a LoRA when one is named.

    Node "10" saves the latent, "11" the frames.
    """
    graph: Graph = {
        "1": {
            "class_type": "UNETLoader",
            "inputs": {"unet_name": MODEL, "weight_dtype": "default"},
        },
        "2": {"class_type": "ModelSamplingSD3", "inputs": {"model": ["1", 0], "shift": 8.0}},
        "3": {"class_type": CLIP, "inputs": {}},
        "4": {"class_type": "CLIPTextEncode", "inputs": {"clip": ["3", 0], "text": text}},
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
            "class_type": "SaveLatent",
            "inputs": {"samples": ["7", 0], "filename_prefix": f"{prefix}/latent"},
        },
        "11": {
            "class_type": "SaveImage",
            "inputs": {"images": ["9", 0], "filename_prefix": f"{prefix}/frame"},
        },
    }
    if lora:
        graph["12"] = {
            "class_type": "LoraLoaderModelOnly",
            "inputs": {"model": ["1", 0], "lora_name": lora, "strength_model": 1.0},
        }
        graph["2"]["inputs"]["model"] = ["12", 0]
    return graph
