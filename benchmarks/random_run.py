"""Makes runs on random weights and one random clip, with the speed and memory of real ones."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from measure import Size, space_of

from wan_core.cache import CacheItem, CacheSet, LatentCache
from wan_core.files import Roots
from wan_core.job import DataConfig, RunConfig, choose_run, prepare_run
from wan_core.load import ModelPlan
from wan_core.lora import LoraConfig
from wan_core.model import WanShape, WanTransformer
from wan_core.train import TrainConfig

PROMPT_ROWS, TEXT_ROWS = 64, 80
"""tokens of a caption, and of its padded batch"""


def random_run(
    folder: Path, base: Path, shape: WanShape, size: Size, plan: ModelPlan, lora: LoraConfig, train: TrainConfig
) -> tuple[Path, Roots]:
    """Creates a run directory below `folder` for the model file `base` and one random latent.

    `plan`: settings of ModelPlan without the file. Returns the directory and the roots.
    """
    cache = LatentCache(folder / "runs" / "_cache")
    generator = torch.Generator().manual_seed(0)
    keys = [f"{number:064x}" for number in range(4)]
    cache.write_latent(keys[0], torch.randn(size.latent(shape), generator=generator))
    for key in keys[1:]:
        cache.write_text(key, torch.randn(PROMPT_ROWS, 4096, generator=generator))
    item = CacheItem(
        latent_key=keys[0], text_key=keys[1], num_frames=size.frames, height=size.height, width=size.width
    )  # fmt: skip
    cache_set = CacheSet(
        items=(item,), empty_text_key=keys[2], negative_text_key=keys[3], latent_space=space_of(shape).name, fps=16.0,
        vae_identity="random", text_identity="random",
    )  # fmt: skip
    roots = Roots({"diffusion_models": (str(base.parent),), "cache": (str(folder / "runs" / "_cache"),)})
    config = RunConfig(
        run_name="bench",
        model=replace(plan, base_file=f"diffusion_models:{base.name}"),
        data=DataConfig(fingerprint=cache.write_set(cache_set), num_items=1),
        lora=lora,
        train=train,
    )
    decision = choose_run(folder / "runs", config)
    prepare_run(decision, config)
    return decision.directory, roots


def write_random_weights(path: Path, shape: WanShape) -> None:
    """Write a bf16 Wan file of that shape, tensor by tensor: 28 GB for 14B."""
    with torch.device("meta"):
        sizes = {name: tuple(p.shape) for name, p in WanTransformer(shape).named_parameters()}
    header: dict[str, Any] = {}
    offset = 0
    for name, size in sizes.items():
        count = 2 * torch.Size(size).numel()
        header[name] = {"dtype": "BF16", "shape": list(size), "data_offsets": [offset, offset + count]}
        offset += count
    text = json.dumps(header).encode()
    generator = torch.Generator().manual_seed(0)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, size in sizes.items():
            scale = torch.Size(size[1:]).numel() ** -0.5 if len(size) > 1 else 0.1
            # One million random values, repeated: drawing 14 G takes longer than training.
            block = (torch.randn(1 << 20, generator=generator) * scale + (1.0 if ".norm" in name else 0.0)).bfloat16()
            count = torch.Size(size).numel()
            values = block.repeat(-(-count // len(block)))[:count]
            file.write(values.view(torch.uint8).numpy().data)
