"""The graph the queue tests share, on tiny files, and looking at what it left behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from comfy_server import ComfyServer
from world import CLIP, MODEL, VAE

Graph = dict[str, dict[str, Any]]
TRAIN, CACHE = "train", "cache"


def training_graph(run_name: str, folder: str = "clips", **train: Any) -> Graph:
    """The six nodes, without previews."""
    settings = {"steps": 4, "learning_rate": 0.01, "rank": 4, "save_every_n_steps": 2, "preview_every_n_steps": 0}
    return {
        "model": {"class_type": "LoadWanModel", "inputs": {"diffusion_model": MODEL}},
        "data": {
            "class_type": "WanVideoDataset",
            "inputs": {"model": ["model", 0], "folder": folder, "width": 48, "height": 48, "num_frames": 5},
        },
        "vae": {"class_type": "VAELoader", "inputs": {"vae_name": VAE}},
        "clip": {"class_type": CLIP, "inputs": {}},
        CACHE: {
            "class_type": "CacheLatents",
            "inputs": {"dataset": ["data", 0], "vae": ["vae", 0], "clip": ["clip", 0]},
        },
        TRAIN: {
            "class_type": "TrainLoRA",
            "inputs": {"model": ["model", 0], "cache": [CACHE, 0], "run_name": run_name, **settings, **train},
        },
    }


def is_no_choice(said: str, name: str, value: str, nearest: str = "") -> bool:
    """Whether `value` was refused as no choice of `name`: by our node, or by a ComfyUI (0.10 on) that checks first."""
    ours = f'{name} "{value}" is not a choice' in said and (not nearest or f'Did you mean "{nearest}' in said)
    return ours or f"{name}: '{value}' not in" in said


def run_of(comfy: ComfyServer, entry: dict[str, Any]) -> dict[str, Any]:
    """What TrainLoRA reported."""
    return comfy.outputs(entry, TRAIN)["wan_run"][0]


def folder_of(comfy: ComfyServer, name: str) -> Path:
    """The run directory."""
    return comfy.output / "wan_trainer" / name


def content(folder: Path) -> dict[str, bytes]:
    """Every file of a folder by its relative path."""
    return {str(f.relative_to(folder)): f.read_bytes() for f in sorted(folder.rglob("*")) if f.is_file()}


def steps_trained(comfy: ComfyServer, name: str) -> int:
    """Step lines in metrics.jsonl, all sessions together."""
    lines = (folder_of(comfy, name) / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return sum(json.loads(line)["event"] == "step" for line in lines)
