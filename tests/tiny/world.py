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

__all__ = ["CLIP", "MODEL", "TINY_PACK", "VAE", "ensure_models", "fill_base", "with_tiny_clip"]

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TINY_PACK = HERE / "comfy_pack"

MODEL = "wan_tiny_t2v.safetensors"
VAE = "wan_tiny_vae.safetensors"
CLIP = "TinyWanCLIPLoader"


def ensure_models(comfyui: Path, **size: int) -> Path:
    """A `models` folder with the tiny files, made once per recipe. `size`: options of make_models.py."""
    maker = HERE / "make_models.py"
    key = hashlib.sha256(maker.read_bytes() + repr(sorted(size.items())).encode()).hexdigest()[:12]
    folder = ROOT / ".cache" / f"tiny-{key}"
    if (folder / "vae" / VAE).is_file():
        return folder
    staging = folder.with_name(f"{folder.name}.{os.getpid()}")
    flags = [
        part for name, value in size.items() for part in (f"--{name.replace('_', '-')}", str(value))
    ]
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


def fill_base(base: Path, comfyui: Path, dataset: str = "clips", **size: int) -> Path:
    """Put tiny models and a dataset of three real clips (`input/<dataset>`) into a base directory."""
    models = ensure_models(comfyui, **size)
    for file in (f"diffusion_models/{MODEL}", f"vae/{VAE}"):
        target = base / "models" / file
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(models / file, target)
    place_clips(base / "input" / dataset)
    return base


def with_tiny_clip(graph: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The API graph with every CLIPLoader replaced by the tiny one; nothing else is touched."""
    return {
        node: {**body, "class_type": CLIP, "inputs": {}}
        if body["class_type"] == "CLIPLoader"
        else body
        for node, body in graph.items()
    }
